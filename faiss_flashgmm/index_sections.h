#pragma once

// What a file says of the parts of an index beside the stream of FAISS.

#include <memory>
#include <string>
#include <vector>

#include <faiss/Index.h>

#include <faiss_flashgmm/Record.h>

namespace faiss_flashgmm {

/// One part of an index that is more than its FAISS type.
struct Section {
    std::string kind; ///< which type it is
    std::string path; ///< where it is, see for_each_part
    Record record;    ///< what FAISS does not store of it
};

std::vector<Section> sections_of(const faiss::Index& index);

/** Makes the parts of an index what they were when it was written.
 *
 * Throws faiss::FaissException if the sections do not fit the index.
 */
void restore_sections(
        std::unique_ptr<faiss::Index>& index,
        const std::vector<Section>& sections);

} // namespace faiss_flashgmm
