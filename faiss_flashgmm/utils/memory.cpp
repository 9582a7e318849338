#include <faiss_flashgmm/utils/memory.h>

#include <unistd.h>

namespace faiss_flashgmm {

uint64_t available_memory() {
    const long pages = sysconf(_SC_AVPHYS_PAGES);
    const long page_size = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_size > 0 ? uint64_t(pages) * page_size : 0;
}

} // namespace faiss_flashgmm
