#pragma once

#include <fstream>
#include <string>
#include <vector>

#include <faiss_flashgmm/utils/Json.h>

namespace faiss_flashgmm {

/** The rows of results, one JSON object a line, in a file and on stdout. Rows
 * that are in the file already need not be measured again: an interrupted run
 * continues.
 */
class BenchRows {
   public:
    /// @param path     appended to; empty: no file
    /// @param json     stdout gets rows too, instead of text
    BenchRows(const std::string& path, bool json);

    /// Whether there is a row that begins with these fields.
    bool has(const JsonObject& key) const;

    /// @param text     what a person reads of the row
    void add(const JsonObject& row, const std::string& text);

    /// Text alone, unless stdout gets rows.
    void say(const std::string& text) const;

   private:
    std::string path_;
    bool json_;
    std::vector<std::string> lines_;
    std::ofstream file_;
};

/// Six digits: what is measured has no more.
double rounded(double value);
std::vector<double> rounded(std::vector<double> values);

} // namespace faiss_flashgmm
