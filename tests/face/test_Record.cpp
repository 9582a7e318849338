#include <faiss_flashgmm/Record.h>

#include <faiss_flashgmm/fields.h>

#include <limits>

#include <gtest/gtest.h>

#include <faiss/impl/FaissException.h>

namespace faiss_flashgmm {
namespace {

Record round_trip(const Record& record) {
    std::string bytes;
    record.append_to(bytes);
    ByteReader reader(bytes);
    Record read = Record::read_from(reader);
    EXPECT_THROW(reader.take(1), faiss::FaissException);
    return read;
}

TEST(Record, GivesBackWhatWasSet) {
    Record record;
    record.set("s", std::string("a\0b", 3));
    record.set("i", std::numeric_limits<int64_t>::min());
    record.set("d", -0.1);
    record.set("floats", std::vector<float>{1, 2.5f});
    record.set("none", std::vector<double>());
    const Record read = round_trip(record);
    std::string s;
    int64_t i;
    double d;
    std::vector<float> floats;
    std::vector<double> none(3);
    ASSERT_TRUE(
            read.get("s", s) && read.get("i", i) && read.get("d", d) &&
            read.get("floats", floats) && read.get("none", none));
    EXPECT_EQ(s, std::string("a\0b", 3));
    EXPECT_EQ(i, std::numeric_limits<int64_t>::min());
    EXPECT_EQ(d, -0.1);
    EXPECT_EQ(floats, (std::vector<float>{1, 2.5f}));
    EXPECT_TRUE(none.empty());
}

TEST(Record, MissingNamesChangeNothingAndOtherTypesThrow) {
    Record record;
    record.set("i", int64_t(4));
    double d = 7;
    EXPECT_FALSE(record.get("d", d));
    EXPECT_EQ(d, 7);
    EXPECT_THROW(record.get("i", d), faiss::FaissException);
    std::string s;
    EXPECT_THROW(record.get("i", s), faiss::FaissException);
    record.set("list", std::vector<int64_t>{1, 2});
    int64_t i;
    EXPECT_THROW(record.get("list", i), faiss::FaissException);
}

TEST(Record, BytesThatEndEarlyThrow) {
    Record record;
    record.set("name", std::string("value"));
    std::string bytes;
    record.append_to(bytes);
    for (size_t size = 0; size < bytes.size(); size++) {
        ByteReader reader(std::string_view(bytes).substr(0, size));
        EXPECT_THROW(Record::read_from(reader), faiss::FaissException) << size;
    }
    // a size that no memory could hold
    std::string huge;
    append_size(huge, 1);
    append_size(huge, uint64_t(1) << 60);
    ByteReader reader(huge);
    EXPECT_THROW(Record::read_from(reader), faiss::FaissException);
}

TEST(Fields, SettingsGoThroughARecord) {
    MultiAssign assigner;
    assigner.policy = AssignPolicy::nearest;
    assigner.tau = 0.25;
    faiss::ClusteringParameters cp;
    cp.seed = 3;
    cp.spherical = true;
    Record record;
    put_fields(assigner, "a", record);
    put_fields(cp, "cp", record);
    record = round_trip(record);
    MultiAssign read;
    read.distance_ratio = 9;
    get_fields(read, "a", record);
    EXPECT_EQ(read.policy, AssignPolicy::nearest);
    EXPECT_EQ(read.tau, 0.25);
    EXPECT_EQ(read.distance_ratio, 0);
    faiss::ClusteringParameters read_cp;
    get_fields(read_cp, "cp", record);
    EXPECT_EQ(read_cp.seed, 3);
    EXPECT_TRUE(read_cp.spherical);
}

TEST(Fields, WhatDoesNotFitIsNamed) {
    const auto message = [](const Record& record, auto object) {
        try {
            get_fields(object, "x", record);
        } catch (const faiss::FaissException& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    Record record;
    record.set("x.policy", std::string("best"));
    EXPECT_NE(
            message(record, MultiAssign()).find("x.policy is 'best'"),
            std::string::npos);
    Record number;
    number.set("x.seed", int64_t(1) << 40);
    EXPECT_NE(
            message(number, faiss::ClusteringParameters()).find("x.seed"),
            std::string::npos);
}

TEST(Fields, EveryPolicyHasAName) {
    for (const auto& [name, policy] : kPolicyNames) {
        AssignPolicy found = AssignPolicy::single;
        EXPECT_TRUE(find_value(name_of(policy), found));
        EXPECT_EQ(found, policy);
    }
}

} // namespace
} // namespace faiss_flashgmm
