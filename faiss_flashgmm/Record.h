#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace faiss_flashgmm {

/// Reads bytes that may have been cut off or changed. Throws
/// faiss::FaissException instead of reading past the end.
class ByteReader {
   public:
    explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

    uint64_t read_size();
    std::string read_string();

    /// The next `size` bytes.
    std::string_view take(uint64_t size);

   private:
    std::string_view bytes_; ///< not read yet
};

void append_size(std::string& bytes, uint64_t size);
void append_string(std::string& bytes, std::string_view s);

/** Named values, in bytes: what a file keeps beside the stream of FAISS.
 *
 * A name that is missing leaves the value as it was, and names nobody asks for
 * are ignored: fields can be added without a new version of the format.
 */
class Record {
   public:
    void set(const std::string& name, const std::string& value);
    void set(const std::string& name, int64_t value);
    void set(const std::string& name, double value);

    template <class T>
    void set(const std::string& name, const std::vector<T>& values) {
        set_raw(name, tag_of<T>(), values.data(), values.size() * sizeof(T));
    }

    /// Each returns whether the name is there. Throws faiss::FaissException
    /// if the value is of another type.
    bool get(const std::string& name, std::string& value) const;
    bool get(const std::string& name, int64_t& value) const;
    bool get(const std::string& name, double& value) const;

    template <class T>
    bool get(const std::string& name, std::vector<T>& values) const {
        const std::string* bytes = find(name, tag_of<T>(), sizeof(T));
        if (bytes) {
            values.resize((bytes->size() - 1) / sizeof(T));
            copy_raw(*bytes, values.data());
        }
        return bytes;
    }

    bool has(const std::string& name) const {
        return values_.count(name) > 0;
    }

    void append_to(std::string& bytes) const;
    static Record read_from(ByteReader& reader);

   private:
    template <class T>
    static constexpr char tag_of() {
        static_assert(std::is_arithmetic_v<T> && sizeof(T) >= 4);
        if constexpr (std::is_floating_point_v<T>) {
            return sizeof(T) == sizeof(float) ? 'f' : 'd';
        } else {
            return sizeof(T) == sizeof(int32_t) ? 'n' : 'i';
        }
    }

    /// A vector of one value.
    template <class T>
    bool get_one(const std::string& name, T& value) const;

    void set_raw(
            const std::string& name,
            char tag,
            const void* data,
            size_t size);
    const std::string* find(
            const std::string& name,
            char tag,
            size_t value_size) const;
    static void copy_raw(const std::string& bytes, void* data);

    /// Of each value a letter for its type, then its bytes.
    std::map<std::string, std::string> values_;
};

} // namespace faiss_flashgmm
