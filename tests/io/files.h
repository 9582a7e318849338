#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

/// A directory of its own for the running test, gone with the object.
class TemporaryDirectory {
   public:
    TemporaryDirectory() {
        std::string name = testing::TempDir() + "flashgmm-XXXXXX";
        path_ = mkdtemp(name.data());
    }
    ~TemporaryDirectory() {
        std::filesystem::remove_all(path_);
    }
    TemporaryDirectory(const TemporaryDirectory&) = delete;

    std::string file(const std::string& name) const {
        return (path_ / name).string();
    }

    /// The path of a new file with these bytes.
    std::string write(const std::string& name, const std::string& bytes) const {
        std::ofstream(path_ / name, std::ios::binary) << bytes;
        return file(name);
    }

    /// Names in the directory.
    std::vector<std::string> list() const {
        std::vector<std::string> names;
        for (const auto& entry : std::filesystem::directory_iterator(path_)) {
            names.push_back(entry.path().filename());
        }
        return names;
    }

   private:
    std::filesystem::path path_;
};

template <class T>
std::string bytes_of(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()),
            values.size() * sizeof(T)};
}

inline std::string bin_header(uint32_t n, uint32_t d) {
    return bytes_of<uint32_t>({n, d});
}

/// The header of a .npy file of version 1 with this dictionary.
inline std::string npy_header(const std::string& dictionary) {
    std::string text("\x93NUMPY\x01\x00", 8);
    return text + bytes_of<uint16_t>({uint16_t(dictionary.size())}) +
            dictionary;
}

/// The message of the exception of type E that function throws.
template <class E, class Function>
std::string message_of(Function&& function) {
    try {
        function();
    } catch (const E& error) {
        return error.what();
    }
    ADD_FAILURE() << "no exception";
    return "";
}
