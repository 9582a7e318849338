#include <faiss_flashgmm/Record.h>

#include <cstring>

#include <faiss/impl/FaissAssert.h>

namespace faiss_flashgmm {

uint64_t ByteReader::read_size() {
    uint64_t size;
    std::memcpy(&size, take(sizeof(size)).data(), sizeof(size));
    return size;
}

std::string ByteReader::read_string() {
    return std::string(take(read_size()));
}

std::string_view ByteReader::take(uint64_t size) {
    FAISS_THROW_IF_NOT_FMT(
            size <= bytes_.size(),
            "%zu bytes are left where %zu are expected",
            bytes_.size(),
            size_t(size));
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
}

void append_size(std::string& bytes, uint64_t size) {
    bytes.append(reinterpret_cast<const char*>(&size), sizeof(size));
}

void append_string(std::string& bytes, std::string_view s) {
    append_size(bytes, s.size());
    bytes.append(s);
}

void Record::set(const std::string& name, const std::string& value) {
    set_raw(name, 's', value.data(), value.size());
}

void Record::set(const std::string& name, int64_t value) {
    set_raw(name, 'i', &value, sizeof(value));
}

void Record::set(const std::string& name, double value) {
    set_raw(name, 'd', &value, sizeof(value));
}

bool Record::get(const std::string& name, std::string& value) const {
    const std::string* bytes = find(name, 's', 1);
    if (bytes) {
        value = bytes->substr(1);
    }
    return bytes;
}

template <class T>
bool Record::get_one(const std::string& name, T& value) const {
    std::vector<T> values;
    if (!get(name, values)) {
        return false;
    }
    FAISS_THROW_IF_NOT_FMT(
            values.size() == 1,
            "'%s' holds %zu numbers",
            name.c_str(),
            values.size());
    value = values[0];
    return true;
}

bool Record::get(const std::string& name, int64_t& value) const {
    return get_one(name, value);
}

bool Record::get(const std::string& name, double& value) const {
    return get_one(name, value);
}

void Record::append_to(std::string& bytes) const {
    append_size(bytes, values_.size());
    for (const auto& [name, value] : values_) {
        append_string(bytes, name);
        append_string(bytes, value);
    }
}

Record Record::read_from(ByteReader& reader) {
    Record record;
    for (uint64_t n = reader.read_size(); n > 0; n--) {
        std::string name = reader.read_string();
        std::string value = reader.read_string();
        FAISS_THROW_IF_NOT_FMT(
                !value.empty(), "'%s' has no value", name.c_str());
        record.values_[std::move(name)] = std::move(value);
    }
    return record;
}

void Record::set_raw(
        const std::string& name,
        char tag,
        const void* data,
        size_t size) {
    std::string value(1, tag);
    value.append(static_cast<const char*>(data), size);
    values_[name] = std::move(value);
}

const std::string* Record::find(
        const std::string& name,
        char tag,
        size_t value_size) const {
    const auto value = values_.find(name);
    if (value == values_.end()) {
        return nullptr;
    }
    const std::string& bytes = value->second;
    FAISS_THROW_IF_NOT_FMT(
            bytes[0] == tag && (bytes.size() - 1) % value_size == 0,
            "'%s' is of another type",
            name.c_str());
    return &bytes;
}

void Record::copy_raw(const std::string& bytes, void* data) {
    if (bytes.size() > 1) {
        std::memcpy(data, bytes.data() + 1, bytes.size() - 1);
    }
}

} // namespace faiss_flashgmm
