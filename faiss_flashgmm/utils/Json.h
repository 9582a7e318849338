#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <string>
#include <string_view>
#include <vector>

namespace faiss_flashgmm {

template <class T>
concept JsonNumber =
        (std::integral<T> && !std::same_as<T, bool>) || std::floating_point<T>;

/** One JSON object on one line, with its fields in the order of the calls.
 *
 *     JsonObject().add("n", 10).add("name", "a").str()  ->  {"n": 10, ...}
 */
class JsonObject {
   public:
    JsonObject& add(std::string_view key, std::string_view value) {
        begin_field(key);
        append_string(value);
        return *this;
    }
    JsonObject& add(std::string_view key, const char* value) {
        return add(key, std::string_view(value));
    }

    JsonObject& add(std::string_view key, std::same_as<bool> auto value) {
        begin_field(key);
        fields_ += value ? "true" : "false";
        return *this;
    }

    template <JsonNumber T>
    JsonObject& add(std::string_view key, T value) {
        begin_field(key);
        append_number(value);
        return *this;
    }

    template <JsonNumber T>
    JsonObject& add(std::string_view key, const std::vector<T>& values) {
        begin_field(key);
        fields_ += '[';
        for (size_t i = 0; i < values.size(); i++) {
            fields_ += i == 0 ? "" : ", ";
            append_number(values[i]);
        }
        fields_ += ']';
        return *this;
    }

    std::string str() const {
        return "{" + fields_ + "}";
    }

   private:
    void begin_field(std::string_view key) {
        if (!fields_.empty()) {
            fields_ += ", ";
        }
        append_string(key);
        fields_ += ": ";
    }

    /// The shortest text that reads back as the same number; JSON has no
    /// NaN and no infinity, so these become null.
    template <class T>
    void append_number(T value) {
        if constexpr (std::floating_point<T>) {
            if (!std::isfinite(value)) {
                fields_ += "null";
                return;
            }
        }
        char text[32];
        const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
        fields_.append(text, end);
    }

    void append_string(std::string_view text) {
        constexpr char kHex[] = "0123456789abcdef";
        fields_ += '"';
        for (const char c : text) {
            const auto byte = static_cast<unsigned char>(c);
            if (c == '"' || c == '\\') {
                fields_ += '\\';
                fields_ += c;
            } else if (byte < 0x20) {
                fields_ += "\\u00";
                fields_ += kHex[byte >> 4];
                fields_ += kHex[byte & 15];
            } else {
                fields_ += c;
            }
        }
        fields_ += '"';
    }

    std::string fields_;
};

} // namespace faiss_flashgmm
