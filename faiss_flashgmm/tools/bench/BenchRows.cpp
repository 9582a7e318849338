#include <faiss_flashgmm/tools/bench/BenchRows.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include <faiss_flashgmm/utils/Error.h>

namespace faiss_flashgmm {

BenchRows::BenchRows(const std::string& path, bool json)
        : path_(path), json_(json) {
    if (path.empty()) {
        return;
    }
    std::ifstream earlier(path);
    for (std::string line; std::getline(earlier, line);) {
        lines_.push_back(line);
    }
    file_.open(path, std::ios::app);
    FLASHGMM_THROW_IF_NOT_FMT(file_.good(), "cannot write %s", path.c_str());
}

bool BenchRows::has(const JsonObject& key) const {
    std::string begin = key.str();
    begin.back() = ','; // instead of the brace
    return std::any_of(
            lines_.begin(), lines_.end(), [&](const std::string& line) {
                return line.starts_with(begin);
            });
}

void BenchRows::add(const JsonObject& row, const std::string& text) {
    const std::string& line = lines_.emplace_back(row.str());
    if (json_) {
        std::puts(line.c_str());
        std::fflush(stdout);
    }
    say(text);
    if (!path_.empty()) {
        file_ << line << "\n" << std::flush;
        FLASHGMM_THROW_IF_NOT_FMT(
                file_.good(), "cannot write %s", path_.c_str());
    }
}

void BenchRows::say(const std::string& text) const {
    if (!json_) {
        std::puts(text.c_str());
        std::fflush(stdout);
    }
}

double rounded(double value) {
    if (value == 0 || !std::isfinite(value)) {
        return value;
    }
    return std::strtod(format("%.6g", value).c_str(), nullptr);
}

std::vector<double> rounded(std::vector<double> values) {
    for (double& value : values) {
        value = rounded(value);
    }
    return values;
}

} // namespace faiss_flashgmm
