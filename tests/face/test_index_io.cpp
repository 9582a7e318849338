#include <faiss_flashgmm/index_io.h>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <faiss/IndexFlat.h>
#include <faiss/IndexIDMap.h>
#include <faiss/IndexPreTransform.h>
#include <faiss/IndexRefine.h>
#include <faiss/IndexReplicas.h>
#include <faiss/IndexShards.h>
#include <faiss/VectorTransform.h>
#include <faiss/index_io.h>
#include <faiss/invlists/OnDiskInvertedLists.h>

#include <faiss_flashgmm/IndexUniqueIds.h>
#include <faiss_flashgmm/fields.h>
#include <faiss_flashgmm/index_tree.h>
#include <faiss_flashgmm/train_ivf.h>

#include "face/lists_on_disk.h"
#include "face/multi_assign_cases.h"

namespace faiss_flashgmm {
namespace {

using namespace faiss_flashgmm::testing;
namespace fs = std::filesystem;

using Bytes = std::vector<uint8_t>;

Bytes bytes_of(const faiss::Index& index) {
    faiss::VectorIOWriter writer;
    faiss_flashgmm::write_index(&index, &writer);
    return writer.data;
}

std::unique_ptr<faiss::Index> index_of(const Bytes& bytes) {
    faiss::VectorIOReader reader;
    reader.data = bytes;
    auto index = faiss_flashgmm::read_index(&reader);
    EXPECT_EQ(reader.rp, bytes.size());
    return index;
}

std::unique_ptr<faiss::Index> round_trip(const faiss::Index& index) {
    return index_of(bytes_of(index));
}

/// A directory for the files of one test.
struct IndexIOTest : ::testing::Test {
    fs::path directory;

    IndexIOTest() {
        std::string name = (fs::temp_directory_path() / "indexXXXXXX").string();
        EXPECT_NE(mkdtemp(name.data()), nullptr);
        directory = name;
    }
    ~IndexIOTest() override {
        fs::remove_all(directory);
    }

    std::string path(const char* name) const {
        return (directory / name).string();
    }
    /// Files in the directory, to see that no temporary one is left.
    size_t n_files() const {
        return std::distance(
                fs::directory_iterator(directory), fs::directory_iterator());
    }
    std::string write_bytes(const char* name, const std::string& bytes) const {
        std::ofstream(path(name), std::ios::binary) << bytes;
        return path(name);
    }
};

struct IndexIOCodecTest : ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
        MultiAssign,
        IndexIOCodecTest,
        ::testing::ValuesIn(some_cases()),
        case_name);

/// The same type, the same results, and the same behaviour from here on.
void expect_same_part(faiss::Index& index, faiss::Index& other) {
    ASSERT_EQ(typeid(index), typeid(other));
    auto& ivf = dynamic_cast<faiss::IndexIVF&>(index);
    auto& other_ivf = dynamic_cast<faiss::IndexIVF&>(other);
    auto& multi = dynamic_cast<IVFMultiAssign&>(index);
    auto& other_multi = dynamic_cast<IVFMultiAssign&>(other);
    EXPECT_EQ(multi.assigner.policy, other_multi.assigner.policy);
    EXPECT_EQ(multi.assigner.tau, other_multi.assigner.tau);
    EXPECT_EQ(
            multi.assigner.distance_ratio, other_multi.assigner.distance_ratio);
    EXPECT_EQ(multi.gmm.variance, other_multi.gmm.variance);
    EXPECT_EQ(multi.gmm.weights, other_multi.gmm.weights);
    EXPECT_EQ(multi.gmm.init, other_multi.gmm.init);
    EXPECT_EQ(multi.gmm.tol, other_multi.gmm.tol);
    EXPECT_EQ(ivf.cp.niter, other_ivf.cp.niter);
    EXPECT_EQ(ivf.cp.seed, other_ivf.cp.seed);
    EXPECT_EQ(ivf.nprobe, other_ivf.nprobe);
    EXPECT_EQ(multi.mixture().k, other_multi.mixture().k);
    EXPECT_EQ(multi.mixture().means, other_multi.mixture().means);
    EXPECT_EQ(multi.mixture().variances, other_multi.mixture().variances);
    EXPECT_EQ(multi.mixture().weights, other_multi.mixture().weights);
    EXPECT_EQ(multi.nentries(), other_multi.nentries());
    EXPECT_EQ(multi.counts().vectors, other_multi.counts().vectors);
    EXPECT_EQ(multi.counts().copies, other_multi.counts().copies);
    EXPECT_EQ(multi.counts().max_copies, other_multi.counts().max_copies);
    EXPECT_EQ(multi.counts().largest_id, other_multi.counts().largest_id);
}

TEST_P(IndexIOCodecTest, AFileKeepsTheIndexAsItIs) {
    MultiIndex index = make_filled(GetParam());
    index->nprobe = 4;
    index->cp.seed = 99;
    index.multi->gmm.tol = 0.125;
    index.multi->gmm.init = Initialization::kmeans_pp;
    auto read = round_trip(*index);
    expect_same_part(*index, *read);
    EXPECT_EQ(
            search(*index, query_rows(), 10), search(*read, query_rows(), 10));

    // both go on in the same way
    read->add(kQueries, query_rows().data());
    index->add(kQueries, query_rows().data());
    expect_same_part(*index, *read);
    EXPECT_EQ(
            search(*index, query_rows(), 10), search(*read, query_rows(), 10));
}

TEST_P(IndexIOCodecTest, AnUntrainedIndexTrainsAsItWould) {
    MultiIndex index = make_untrained(GetParam());
    auto read = round_trip(*index);
    for (faiss::Index* each : {(faiss::Index*)index.ivf.get(), read.get()}) {
        each->train(kRows, base_rows().data());
        each->add(kRows, base_rows().data());
    }
    expect_same_part(*index, *read);
    EXPECT_EQ(
            search(*index, query_rows(), 10), search(*read, query_rows(), 10));
}

TEST_P(IndexIOCodecTest, AnIdThatWasRemovedIsNotIssuedAgain) {
    MultiIndex index = make_filled(GetParam());
    index->remove_ids(faiss::IDSelectorRange(kRows - 1, kRows));
    auto read = round_trip(*index);
    EXPECT_EQ(read->ntotal, kRows - 1);
    read->add(1, base_rows().data());
    EXPECT_FALSE(
            lists_of(dynamic_cast<faiss::IndexIVF&>(*read), kRows).empty());
}

TEST_P(IndexIOCodecTest, DirectMapsPointToThePrimaryEntryAgain) {
    for (auto type : {faiss::DirectMap::Array, faiss::DirectMap::Hashtable}) {
        MultiIndex index = make_trained(GetParam());
        set_direct_map_type(*index, type);
        index->add(kRows, base_rows().data());
        auto read = round_trip(*index);
        for (idx_t id = 0; id < kRows; id += 37) {
            std::vector<float> expected(kDim), row(kDim);
            index->reconstruct(id, expected.data());
            read->reconstruct(id, row.data());
            EXPECT_EQ(row, expected);
        }
    }
}

TEST(IndexIO, EveryPolicyGoesOnWhereItWas) {
    for (const auto& [name, policy] : kPolicyNames) {
        SCOPED_TRACE(name);
        MultiIndex index =
                make_untrained({Codec::flat, faiss::METRIC_L2, policy});
        index.multi->assigner.max_inflation = 1.25;
        index.multi->assigner.max_entries = 3;
        index->train(kRows, base_rows().data());
        index->add(kRows / 2, base_rows().data());
        auto read = round_trip(*index);
        const MultiAssign& assigner =
                dynamic_cast<IVFMultiAssign&>(*read).assigner;
        EXPECT_EQ(assigner.settings(), index.multi->assigner.settings());
        EXPECT_EQ(assigner.max_entries, 3);
        for (faiss::Index* each :
             {(faiss::Index*)index.ivf.get(), read.get()}) {
            each->add(kRows / 2, base_rows().data() + kRows / 2 * kDim);
        }
        expect_same_part(*index, *read);
        EXPECT_EQ(
                search(*index, query_rows(), 10),
                search(*read, query_rows(), 10));
    }
}

/*************************************************************************
 * Inside other indexes
 *************************************************************************/

MultiIndex some_index() {
    return make_filled(
            {Codec::flat, faiss::METRIC_L2, AssignPolicy::posterior});
}

void expect_same_inside(const faiss::Index& index, const faiss::Index& read) {
    ASSERT_EQ(typeid(index), typeid(read));
    ASSERT_EQ(index.ntotal, read.ntotal);
    const auto* multi = find_multi_assign(index);
    const auto* read_multi = find_multi_assign(read);
    ASSERT_NE(read_multi, nullptr);
    EXPECT_EQ(multi->nentries(), read_multi->nentries());
    EXPECT_EQ(multi->mixture().means, read_multi->mixture().means);
    const Results results = search(read, query_rows(), 10);
    expect_well_formed(results, faiss::METRIC_L2);
    EXPECT_EQ(search(index, query_rows(), 10), results);
}

TEST(IndexIO, KeepsTheTypeUnderWrappers) {
    {
        MultiIndex index = make_trained(
                {Codec::flat, faiss::METRIC_L2, AssignPolicy::posterior});
        faiss::IndexIDMap2 map(index.ivf.get());
        std::vector<idx_t> ids(kRows);
        std::iota(ids.begin(), ids.end(), idx_t(1) << 40);
        map.add_with_ids(kRows, base_rows().data(), ids.data());
        auto read = round_trip(map);
        expect_same_inside(map, *read);
        EXPECT_GE(search(*read, query_rows(), 1).labels[0], idx_t(1) << 40);
    }
    {
        MultiIndex index = some_index();
        faiss::IndexPreTransform chain(index.ivf.get());
        auto rotation =
                std::make_unique<faiss::RandomRotationMatrix>(kDim, kDim);
        rotation->init(3);
        chain.prepend_transform(rotation.release());
        faiss::IndexPreTransform outer(&chain);
        expect_same_inside(outer, *round_trip(outer));
        delete chain.chain[0];
        chain.chain.clear();
    }
    {
        MultiIndex index = some_index();
        index->reset();
        faiss::IndexRefineFlat refine(index.ivf.get());
        refine.add(kRows, base_rows().data());
        expect_same_inside(refine, *round_trip(refine));
    }
    { // as the coarse quantizer of another
        MultiIndex index = some_index();
        faiss::IndexIVFFlat ivf(index.ivf.get(), kDim, kRows);
        ivf.is_trained = true;
        ivf.add(kRows, base_rows().data());
        auto read = round_trip(ivf);
        expect_same_inside(ivf, *read);
        EXPECT_NE(
                dynamic_cast<IVFMultiAssign*>(
                        dynamic_cast<faiss::IndexIVF&>(*read).quantizer),
                nullptr);
    }
}

TEST(IndexIO, KeepsShardsAndReplicas) {
    MultiIndex first = some_index(), second = some_index();
    for (bool threaded : {false, true}) {
        faiss::IndexShards shards(kDim, threaded, /*successive_ids=*/true);
        shards.add_shard(first.ivf.get());
        shards.add_shard(second.ivf.get());
        auto read = round_trip(shards);
        expect_same_inside(shards, *read);
        auto& read_shards = dynamic_cast<faiss::IndexShards&>(*read);
        EXPECT_TRUE(read_shards.successive_ids);
        EXPECT_NE(find_multi_assign(*read_shards.at(1)), nullptr);

        faiss::IndexReplicas replicas(kDim, threaded);
        replicas.add_replica(first.ivf.get());
        replicas.add_replica(second.ivf.get());
        faiss::IndexShards both(kDim, false, false);
        both.add_shard(&replicas);
        expect_same_inside(both, *round_trip(both));
    }
}

TEST(IndexIO, KeepsUniqueIdsAndFlatGMM) {
    faiss::IndexFlatL2 flat(kDim);
    flat.add(kRows, base_rows().data());
    IndexUniqueIds unique(&flat, 3);
    auto read = round_trip(unique);
    ASSERT_NE(dynamic_cast<IndexUniqueIds*>(read.get()), nullptr);
    EXPECT_EQ(dynamic_cast<IndexUniqueIds&>(*read).max_copies, 3);
    EXPECT_EQ(
            search(*read, query_rows(), 10), search(unique, query_rows(), 10));

    IndexFlatGMM quantizer(kDim, kLists);
    quantizer.clustering.niter = 3;
    faiss::IndexIVFFlat ivf(&quantizer, kDim, kLists);
    ivf.quantizer_trains_alone = 1;
    auto untrained = round_trip(ivf);
    for (faiss::Index* each : {(faiss::Index*)&ivf, untrained.get()}) {
        each->train(kRows, base_rows().data());
        each->add(kRows, base_rows().data());
    }
    EXPECT_EQ(
            search(*untrained, query_rows(), 10),
            search(ivf, query_rows(), 10));
    auto trained = round_trip(ivf);
    EXPECT_EQ(
            search(*trained, query_rows(), 10), search(ivf, query_rows(), 10));
    auto* read_quantizer = dynamic_cast<IndexFlatGMM*>(
            dynamic_cast<faiss::IndexIVF&>(*trained).quantizer);
    ASSERT_NE(read_quantizer, nullptr);
    EXPECT_EQ(
            read_quantizer->clustering.mixture.variances,
            quantizer.clustering.mixture.variances);
}

TEST(IndexIO, StockIndexesGoThroughAndWhatFaissRefusesIsRefused) {
    faiss::IndexFlatL2 flat(kDim);
    flat.add(kRows, base_rows().data());
    EXPECT_EQ(
            search(*round_trip(flat), query_rows(), 3),
            search(flat, query_rows(), 3));
    struct Unknown : faiss::IndexFlatL2 {};
    faiss::IndexShards shards(kDim);
    faiss::IndexIDMap map(&shards); // FAISS writes shards nowhere
    EXPECT_NE(message_of([&] { bytes_of(map); }), "");
    EXPECT_NE(
            message_of([&] { faiss_flashgmm::write_index(nullptr, "x"); }), "");
}

/*************************************************************************
 * Files
 *************************************************************************/

TEST_F(IndexIOTest, AFileIsReadFromDiskMappedAndThroughAPipe) {
    MultiIndex index = some_index();
    index->nprobe = 4;
    const Results expected = search(*index, query_rows(), 10);
    const std::string name = path("index");
    faiss_flashgmm::write_index(index.ivf.get(), name.c_str());
    EXPECT_TRUE(is_index_file(name.c_str()));
    EXPECT_EQ(n_files(), 1u);

    auto read = faiss_flashgmm::read_index(name.c_str());
    expect_same_part(*index, *read);
    EXPECT_EQ(search(*read, query_rows(), 10), expected);

    auto mapped = faiss_flashgmm::read_index(name.c_str(), faiss::IO_FLAG_MMAP);
    EXPECT_NE(
            dynamic_cast<faiss::OnDiskInvertedLists*>(
                    dynamic_cast<faiss::IndexIVF&>(*mapped).invlists),
            nullptr);
    expect_same_part(*index, *mapped);
    EXPECT_EQ(search(*mapped, query_rows(), 10), expected);

    FILE* pipe = popen(("cat " + name).c_str(), "r");
    faiss::FileIOReader from_pipe(pipe);
    EXPECT_EQ(
            search(*faiss_flashgmm::read_index(&from_pipe), query_rows(), 10),
            expected);
    pclose(pipe);

    faiss::FileIOReader file(name.c_str());
    faiss::BufferedIOReader buffered(&file, 1000);
    EXPECT_EQ(
            search(*faiss_flashgmm::read_index(&buffered), query_rows(), 10),
            expected);
}

TEST_F(IndexIOTest, TwoIndexesFollowEachOtherInAStream) {
    MultiIndex index = some_index();
    faiss::VectorIOWriter writer;
    faiss_flashgmm::write_index(index.ivf.get(), &writer);
    faiss_flashgmm::write_index(index.ivf.get(), &writer);
    faiss::VectorIOReader reader;
    reader.data = writer.data;
    EXPECT_EQ(faiss_flashgmm::read_index(&reader)->ntotal, kRows);
    EXPECT_EQ(faiss_flashgmm::read_index(&reader)->ntotal, kRows);
    EXPECT_EQ(reader.rp, reader.data.size());
}

TEST_F(IndexIOTest, ListsOnDiskStayThere) {
    MultiIndex index = some_index();
    const Results expected = search(*index, query_rows(), 10);
    put_lists_on_disk(*index, path("lists"));
    EXPECT_EQ(search(*index, query_rows(), 10), expected);
    faiss_flashgmm::write_index(index.ivf.get(), path("index").c_str());

    EXPECT_EQ(
            search(*faiss_flashgmm::read_index(path("index").c_str()),
                   query_rows(),
                   10),
            expected);
    // both files moved together
    const fs::path elsewhere = directory / "elsewhere";
    fs::create_directory(elsewhere);
    fs::rename(directory / "index", elsewhere / "index");
    fs::rename(directory / "lists", elsewhere / "lists");
    auto moved = faiss_flashgmm::read_index(
            (elsewhere / "index").c_str(), faiss::IO_FLAG_ONDISK_SAME_DIR);
    EXPECT_EQ(search(*moved, query_rows(), 10), expected);
}

TEST_F(IndexIOTest, AFailedWriteLeavesTheFormerFile) {
    MultiIndex index = some_index();
    const std::string name = path("index");
    faiss_flashgmm::write_index(index.ivf.get(), name.c_str());
    chmod(name.c_str(), 0640);

    faiss::IndexShards shards(kDim);
    faiss::IndexIDMap unwritable(&shards);
    EXPECT_NE(
            message_of([&] {
                faiss_flashgmm::write_index(&unwritable, name.c_str());
            }),
            "");
    EXPECT_EQ(faiss_flashgmm::read_index(name.c_str())->ntotal, kRows);
    EXPECT_EQ(n_files(), 1u);

    // replaced, also through a link, with the mode it had
    fs::create_symlink("index", directory / "link");
    index->reset();
    faiss_flashgmm::write_index(index.ivf.get(), path("link").c_str());
    EXPECT_EQ(faiss_flashgmm::read_index(name.c_str())->ntotal, 0);
    EXPECT_TRUE(fs::is_symlink(directory / "link"));
    EXPECT_EQ(fs::status(name).permissions(), fs::perms(0640));
    EXPECT_EQ(n_files(), 2u);
}

TEST_F(IndexIOTest, WhatCannotBeWrittenOrOpenedIsNamed) {
    MultiIndex index = some_index();
    const std::string nowhere = path("no/such/directory");
    for (const std::string& name : {nowhere, std::string("/dev/full")}) {
        EXPECT_NE(
                message_of([&] {
                    faiss_flashgmm::write_index(index.ivf.get(), name.c_str());
                }).find(name),
                std::string::npos);
    }
    EXPECT_TRUE(fs::is_character_file("/dev/full"));
    EXPECT_NE(
            message_of([&] {
                faiss_flashgmm::read_index(nowhere.c_str());
            }).find(nowhere),
            std::string::npos);
    EXPECT_NE(message_of([&] { is_index_file(nowhere.c_str()); }), "");
}

/*************************************************************************
 * Files that are not right
 *************************************************************************/

/// What is wrong with a file, which is named as well.
std::string complaint_of(const std::string& name) {
    std::string message =
            message_of([&] { faiss_flashgmm::read_index(name.c_str()); });
    EXPECT_NE(message.find(name), std::string::npos) << message;
    return message;
}

TEST_F(IndexIOTest, ForeignFilesAreRefusedByName) {
    const std::string foreign = "not a file of faiss_flashgmm::write_index";
    for (const std::string content :
         {"", "x", "version https://git-lfs.github.com/spec/v1\noid"}) {
        const std::string name = write_bytes("foreign", content);
        EXPECT_NE(complaint_of(name).find(foreign), std::string::npos);
        EXPECT_FALSE(is_index_file(name.c_str()));
    }
    MultiIndex index = some_index();
    faiss::write_index(index.ivf.get(), path("stock").c_str());
    const std::string message = complaint_of(path("stock"));
    EXPECT_NE(message.find("IwFl"), std::string::npos);
    EXPECT_NE(message.find("faiss::read_index"), std::string::npos);
    // and the other way round
    faiss_flashgmm::write_index(index.ivf.get(), path("ours").c_str());
    EXPECT_NE(message_of([&] { faiss::read_index(path("ours").c_str()); }), "");
    EXPECT_NE(complaint_of(directory.string()), ""); // a directory
}

TEST_F(IndexIOTest, ANewerVersionIsRefusedAsSuch) {
    Bytes bytes = bytes_of(*some_index());
    bytes[8]++;
    EXPECT_NE(
            message_of([&] { index_of(bytes); }).find("newer"),
            std::string::npos);
}

TEST_F(IndexIOTest, CutOffFilesAreRefusedWhereverTheyEnd) {
    const Bytes bytes = bytes_of(*some_index());
    for (size_t size = 0; size < bytes.size(); size += size / 7 + 1) {
        const std::string name = write_bytes(
                "cut", std::string(bytes.begin(), bytes.begin() + size));
        SCOPED_TRACE(size);
        complaint_of(name);
        EXPECT_NE(
                message_of([&] {
                    index_of(Bytes(bytes.begin(), bytes.begin() + size));
                }),
                "");
        if (size > 8) {
            EXPECT_NE(
                    message_of([&] {
                        faiss_flashgmm::read_index(
                                name.c_str(), faiss::IO_FLAG_MMAP);
                    }).find("cut off"),
                    std::string::npos);
        }
    }
    const std::string longer = write_bytes(
            "longer", std::string(bytes.begin(), bytes.end()) + "x");
    EXPECT_NE(complaint_of(longer).find("more bytes"), std::string::npos);
}

TEST_F(IndexIOTest, AnyChangedByteIsNoticed) {
    Bytes bytes = bytes_of(*some_index());
    for (size_t i = 0; i < bytes.size(); i += i / 97 + 1) {
        SCOPED_TRACE(i);
        bytes[i] ^= 1 << i % 8;
        EXPECT_NE(message_of([&] { index_of(bytes); }), "");
        bytes[i] ^= 1 << i % 8;
    }
    index_of(bytes);
}

TEST_F(IndexIOTest, AStaleMixtureIsNotWritten) {
    MultiIndex index = some_index();
    dynamic_cast<faiss::IndexFlat*>(index->quantizer)->get_xb()[0] += 1;
    EXPECT_NE(message_of([&] { bytes_of(*index); }), "");
}

} // namespace
} // namespace faiss_flashgmm
