#pragma once

// Given to the compiler by -include before an unchanged C++ test of FAISS. All
// headers of FAISS that the tests use come first: the names are replaced in
// the tests alone.

#include <faiss/AutoTune.h>
#include <faiss/IVFlib.h>
#include <faiss/Index2Layer.h>
#include <faiss/IndexBinaryFlat.h>
#include <faiss/IndexBinaryIVF.h>
#include <faiss/IndexFlat.h>
#include <faiss/IndexFlatCodes.h>
#include <faiss/IndexHNSW.h>
#include <faiss/IndexIVF.h>
#include <faiss/IndexIVFFlat.h>
#include <faiss/IndexIVFPQ.h>
#include <faiss/IndexIVFPQFastScan.h>
#include <faiss/IndexNNDescent.h>
#include <faiss/IndexNSG.h>
#include <faiss/IndexPreTransform.h>
#include <faiss/IndexReplicas.h>
#include <faiss/IndexShards.h>
#include <faiss/MetaIndexes.h>
#include <faiss/VectorTransform.h>
#include <faiss/clone_index.h>
#include <faiss/impl/AuxIndexStructures.h>
#include <faiss/impl/IDSelector.h>
#include <faiss/impl/ResultHandler.h>
#include <faiss/impl/io.h>
#include <faiss/index_factory.h>
#include <faiss/index_io.h>
#include <faiss/invlists/OnDiskInvertedLists.h>
#include <faiss/utils/distances.h>
#include <faiss/utils/random.h>
#include <faiss/utils/utils.h>

#include "faiss_suites/swap.h"

// Where the tests look for them.
namespace faiss {

using SuitesFlat = faiss_suites::Swapped<IndexIVFFlat>;
using SuitesPQ = faiss_suites::Swapped<IndexIVFPQ>;

template <class... Args>
Index* suites_index_factory(Args... args) {
    return faiss_suites::swapped(index_factory(args...));
}

template <class... Args>
Index* suites_clone_index(Args... args) {
    return faiss_suites::swapped(clone_index(args...));
}

template <class... Args>
Index* suites_read_index(Args... args) {
    return faiss_suites::swapped(read_index(args...));
}

} // namespace faiss

#define IndexIVFFlat SuitesFlat
#define IndexIVFPQ SuitesPQ
#define index_factory suites_index_factory
#define clone_index suites_clone_index
#define read_index suites_read_index
