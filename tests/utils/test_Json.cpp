#include <faiss_flashgmm/utils/Json.h>

#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

using faiss_flashgmm::JsonObject;

TEST(JsonObject, HoldsArraysOfNumbers) {
    const std::string text = JsonObject()
                                     .add("a", std::vector<double>{0.5, 1, NAN})
                                     .add("b", std::vector<int>{-1})
                                     .add("c", std::vector<long>{})
                                     .str();
    EXPECT_EQ(text, R"({"a": [0.5, 1, null], "b": [-1], "c": []})");
}

TEST(JsonObject, KeepsTheOrderOfTheFields) {
    const JsonObject object = JsonObject()
                                      .add("z", 1)
                                      .add("a", true)
                                      .add("m", "text")
                                      .add("s", std::string("other"));
    EXPECT_EQ(
            object.str(), R"({"z": 1, "a": true, "m": "text", "s": "other"})");
    EXPECT_EQ(JsonObject().str(), "{}");
}

TEST(JsonObject, WritesNumbersThatReadBackEqual) {
    const double third = 1.0 / 3;
    const std::string text = JsonObject().add("x", third).str();
    EXPECT_EQ(std::stod(text.substr(6)), third);
    EXPECT_EQ(
            JsonObject().add("n", std::numeric_limits<int64_t>::min()).str(),
            R"({"n": -9223372036854775808})");
    EXPECT_EQ(JsonObject().add("x", 0.1f).str(), R"({"x": 0.1})");
}

TEST(JsonObject, WritesNonFiniteNumbersAsNull) {
    const double infinity = std::numeric_limits<double>::infinity();
    EXPECT_EQ(JsonObject().add("x", infinity).str(), R"({"x": null})");
    EXPECT_EQ(JsonObject().add("x", std::nan("")).str(), R"({"x": null})");
}

TEST(JsonObject, EscapesStrings) {
    EXPECT_EQ(
            JsonObject().add("a\"b", "c\\d\n\x1f").str(),
            R"({"a\"b": "c\\d\u000a\u001f"})");
}
