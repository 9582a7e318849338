#pragma once

#include <memory>
#include <string>

#include <faiss/IndexIVF.h>
#include <faiss/invlists/OnDiskInvertedLists.h>

namespace faiss_flashgmm::testing {

/// Moves the inverted lists of an index into a file.
inline void put_lists_on_disk(faiss::IndexIVF& ivf, const std::string& name) {
    auto lists = std::make_unique<faiss::OnDiskInvertedLists>(
            ivf.nlist, ivf.code_size, name.c_str());
    for (size_t list = 0; list < ivf.nlist; list++) {
        lists->add_entries(
                list,
                ivf.invlists->list_size(list),
                faiss::InvertedLists::ScopedIds(ivf.invlists, list).get(),
                faiss::InvertedLists::ScopedCodes(ivf.invlists, list).get());
    }
    ivf.replace_invlists(lists.release(), true);
}

} // namespace faiss_flashgmm::testing
