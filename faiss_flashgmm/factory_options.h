#pragma once

// The options in a part of a factory string, such as MA(nearest,tau=0.1).

#include <charconv>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/fields.h>

namespace faiss_flashgmm {

/// The fields that bare numbers stand for, in order.
inline constexpr std::string_view kNumberFields[] = {
        "max_inflation",
        "max_entries"};

/// Splits at commas outside of parentheses. Throws if these do not match.
std::vector<std::string> split_description(const std::string& description);

/// Sets a field from its text; returns whether it can be.
template <class Field>
bool set_field(Field& field, const std::string& text) {
    if constexpr (std::is_enum_v<Field>) {
        return find_value(text, field);
    } else if constexpr (std::is_arithmetic_v<Field>) {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        if (end == text.c_str() || *end != '\0') {
            return false;
        }
        field = Field(value);
        return double(field) == value || std::is_floating_point_v<Field>;
    } else {
        return false;
    }
}

template <class Field>
std::string text_of(const Field& field) {
    if constexpr (std::is_enum_v<Field>) {
        return name_of(field);
    } else if constexpr (std::is_same_v<Field, bool>) {
        return field ? "1" : "0";
    } else {
        char text[32];
        const auto end = std::to_chars(text, text + sizeof(text), field);
        return std::string(text, end.ptr);
    }
}

template <class Field>
inline constexpr bool kHasText =
        std::is_enum_v<Field> || std::is_arithmetic_v<Field>;

/** Sets fields by "name=value", by the name of one of their values
 * ("posterior"), or by bare numbers (kNumberFields).
 *
 * Throws naming the first option for which there is no field or value.
 */
template <class T>
void set_options(T& object, const std::vector<std::string>& options) {
    size_t n_numbers = 0;
    for (const std::string& option : options) {
        const size_t equals = option.find('=');
        const bool named = equals != std::string::npos;
        const std::string text = option.substr(named ? equals + 1 : 0);
        double number;
        std::string name = named ? option.substr(0, equals) : "";
        if (!named && set_field(number, text) &&
            n_numbers < std::size(kNumberFields)) {
            name = kNumberFields[n_numbers++];
        }
        bool done = false;
        std::string choices;
        visit_fields(object, [&](const char* field_name, auto& field) {
            using Field = std::remove_cvref_t<decltype(field)>;
            if constexpr (kHasText<Field>) {
                const bool is_meant = name.empty() ? std::is_enum_v<Field>
                                                   : name == field_name;
                done = done || (is_meant && set_field(field, text));
                choices +=
                        (choices.empty() ? "" : ", ") + std::string(field_name);
                if constexpr (std::is_enum_v<Field>) {
                    choices += " =";
                    for (const auto& [value, _] : names_of(field)) {
                        choices += std::string(" ") + value;
                    }
                }
            }
        });
        if (!done) {
            FAISS_THROW_FMT(
                    "'%s' is none of the options here: %s",
                    option.c_str(),
                    choices.c_str());
        }
    }
}

/// The options in which an object differs from a default one, as in
/// "(posterior,tau=0.1)"; empty if there are none.
template <class T>
std::string options_of(const T& object) {
    std::string options;
    const T defaults{};
    std::vector<std::string> default_texts;
    visit_fields(defaults, [&](const char*, const auto& field) {
        if constexpr (kHasText<std::remove_cvref_t<decltype(field)>>) {
            default_texts.push_back(text_of(field));
        }
    });
    size_t i = 0;
    visit_fields(object, [&](const char* name, const auto& field) {
        using Field = std::remove_cvref_t<decltype(field)>;
        if constexpr (kHasText<Field>) {
            const std::string text = text_of(field);
            if (text != default_texts[i++]) {
                const bool bare =
                        std::is_enum_v<Field> || name == kNumberFields[0];
                options += (options.empty() ? "" : ",") +
                        (bare ? text : name + ("=" + text));
            }
        }
    });
    return options.empty() ? "" : "(" + options + ")";
}

} // namespace faiss_flashgmm
