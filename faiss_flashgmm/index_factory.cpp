#include <faiss_flashgmm/index_factory.h>

#include <optional>
#include <string_view>
#include <vector>

#include <faiss/impl/FaissAssert.h>
#include <faiss/index_factory.h>

#include <faiss_flashgmm/factory_options.h>
#include <faiss_flashgmm/make_multi_assign.h>
#include <faiss_flashgmm/plain_message.h>

namespace faiss_flashgmm {

namespace {

constexpr std::string_view kMixture = "_GMM";
constexpr std::string_view kAssign = "MA";

/// What a description says beyond those of FAISS.
struct Parts {
    std::string stock; ///< the rest
    std::optional<FlashGMMOptions> gmm;
    std::optional<MultiAssign> assigner;
};

/// Reads "" or "(option,option)".
template <class T>
T parse_options(const std::string& text) {
    T object{};
    if (text.empty()) {
        return object;
    }
    FAISS_THROW_IF_NOT_FMT(
            text.size() >= 2 && text.front() == '(' && text.back() == ')',
            "'%s' does not belong here",
            text.c_str());
    const std::string options = text.substr(1, text.size() - 2);
    if (!options.empty()) {
        set_options(object, split_description(options));
    }
    return object;
}

/// "MA" or "MA(...)", but no other word that begins in this way.
bool is_assign_part(const std::string& part) {
    return part.starts_with(kAssign) &&
            (part.size() == kAssign.size() || part[kAssign.size()] == '(');
}

/// Where "_GMM" is in "IVF4096_GMM(...)", outside of all parentheses.
size_t find_mixture(const std::string& part) {
    int depth = 0;
    for (size_t i = 0; part.starts_with("IVF") && i < part.size(); i++) {
        depth += part[i] == '(' ? 1 : part[i] == ')' ? -1 : 0;
        if (depth == 0 && part.compare(i, kMixture.size(), kMixture) == 0) {
            return i;
        }
    }
    return std::string::npos;
}

Parts parse(const std::string& description) {
    Parts parts;
    for (std::string part : split_description(description)) {
        try {
            if (is_assign_part(part)) {
                if (parts.assigner) {
                    FAISS_THROW_MSG("it is the second");
                }
                parts.assigner =
                        parse_options<MultiAssign>(part.substr(kAssign.size()));
                parts.assigner->check();
                continue;
            }
            const size_t mixture = find_mixture(part);
            if (mixture != std::string::npos) {
                parts.gmm = parse_options<FlashGMMOptions>(
                        part.substr(mixture + kMixture.size()));
                part.resize(mixture);
            }
        } catch (const faiss::FaissException& error) {
            FAISS_THROW_FMT(
                    "'%s': %s", part.c_str(), plain_message(error).c_str());
        }
        parts.stock += (parts.stock.empty() ? "" : ",") + part;
    }
    return parts;
}

std::unique_ptr<faiss::Index> build(
        int d,
        const Parts& parts,
        faiss::MetricType metric) {
    std::unique_ptr<faiss::Index> index(
            faiss::index_factory(d, parts.stock.c_str(), metric));
    if (!parts.gmm && !parts.assigner) {
        return index;
    }
    MultiAssign single;
    single.policy = AssignPolicy::single;
    IVFMultiAssign* multi = make_multi_assign(
            index,
            parts.assigner.value_or(single),
            parts.gmm.value_or(FlashGMMOptions()));
    multi->kmeans_centroids = !parts.gmm;
    return index;
}

} // namespace

std::vector<std::string> split_description(const std::string& description) {
    std::vector<std::string> parts(1);
    int depth = 0;
    for (char c : description) {
        depth += c == '(' ? 1 : c == ')' ? -1 : 0;
        if (c == ',' && depth == 0) {
            parts.emplace_back();
            continue;
        }
        parts.back() += c;
        if (depth < 0) {
            break;
        }
    }
    FAISS_THROW_IF_NOT_FMT(
            depth == 0,
            "'%s' has parentheses that do not match",
            parts.back().c_str());
    return parts;
}

std::unique_ptr<faiss::Index> index_factory(
        int d,
        const char* description,
        faiss::MetricType metric) {
    try {
        return build(d, parse(description), metric);
    } catch (const faiss::FaissException& error) {
        FAISS_THROW_FMT(
                "index_factory(%d, \"%s\"): %s",
                d,
                description,
                plain_message(error).c_str());
    } catch (const std::exception& error) { // a number that is none
        FAISS_THROW_FMT(
                "index_factory(%d, \"%s\"): %s", d, description, error.what());
    }
}

} // namespace faiss_flashgmm
