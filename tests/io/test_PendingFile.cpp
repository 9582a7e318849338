#include <faiss_flashgmm/io/PendingFile.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <faiss_flashgmm/utils/Error.h>

#include "files.h"

using faiss_flashgmm::Error;
using faiss_flashgmm::PendingFile;

namespace fs = std::filesystem;

namespace {

void fill(const PendingFile& pending, const std::string& text) {
    std::ofstream(pending.temporary_path()) << text;
}

std::string text_of(const std::string& path) {
    std::string text;
    std::getline(std::ifstream(path), text);
    return text;
}

} // namespace

TEST(PendingFile, TakesItsNameOnlyWhenCommitted) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("name");
    {
        PendingFile pending(path);
        EXPECT_EQ(directory.list().size(), 1u);
        EXPECT_NE(directory.list()[0], "name");
    }
    EXPECT_TRUE(directory.list().empty());
    PendingFile pending(path);
    fill(pending, "text");
    pending.commit();
    EXPECT_EQ(directory.list(), std::vector<std::string>{"name"});
    EXPECT_EQ(text_of(path), "text");
}

TEST(PendingFile, KeepsThePermissionsOfAFormerFile) {
    const TemporaryDirectory directory;
    const std::string path = directory.write("name", "former");
    const auto mode = fs::perms::owner_read | fs::perms::owner_write |
            fs::perms::group_read;
    fs::permissions(path, mode);
    PendingFile pending(path);
    fill(pending, "new");
    EXPECT_EQ(text_of(path), "former");
    pending.commit();
    EXPECT_EQ(text_of(path), "new");
    EXPECT_EQ(fs::status(path).permissions(), mode);
}

TEST(PendingFile, ReplacesWhatASymbolicLinkPointsTo) {
    const TemporaryDirectory directory;
    directory.write("target", "former");
    const std::string link = directory.file("link");
    fs::create_symlink("target", link);
    PendingFile pending(link);
    fill(pending, "new");
    pending.commit();
    EXPECT_TRUE(fs::is_symlink(link));
    EXPECT_EQ(text_of(directory.file("target")), "new");
}

TEST(PendingFile, WritesDirectlyToWhatIsNoRegularFile) {
    PendingFile pending("/dev/null");
    EXPECT_EQ(pending.temporary_path(), "/dev/null");
    pending.commit();
    EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(PendingFile, NamesThePathThatCannotBeWritten) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("no/such/name");
    const std::string error =
            message_of<Error>([&] { PendingFile pending(path); });
    EXPECT_NE(error.find(path), std::string::npos) << error;
}
