#pragma once

// Installed where FAISS is 1.10 or newer and was built with its GPU part.

#include <memory>

#include <faiss/Index.h>

#include <faiss_flashgmm/FlashGMMClustering.h>
#include <faiss_flashgmm/IndexUniqueIds.h>
#include <faiss_flashgmm/MultiAssign.h>

namespace faiss::gpu {
class GpuResourcesProvider;
struct GpuClonerOptions;
} // namespace faiss::gpu

namespace faiss_flashgmm {

/** A copy of a multi-assign index that searches on a GPU, each id once.
 *
 * What faiss::gpu::index_cpu_to_gpu() makes of the stock form with all copies
 * (GpuIndexIVFFlat, GpuIndexIVFPQ or GpuIndexIVFScalarQuantizer, below
 * transforms and id maps), in an IndexUniqueIds that owns it. A search for k
 * fetches max_copies * (k - 1) + 1 results, of which FAISS allows 2048.
 * GpuParameterSpace sets nprobe. Vectors added to the copy are stored once.
 *
 * Throws faiss::FaissException if there is no multi-assign part; if options
 * keep no ids on the device (INDICES_IVF) or ask for cuVS, which returns more
 * than 256 results in no order and does not mark those that are missing; and
 * where the kernels of FAISS have no form for it: FastScan, RaBitQ,
 * IndexRefine, PQ of other than 8 bits.
 *
 * @param provider  of faiss; the copy shares its resources
 * @param options   null: those of FAISS, without cuVS
 */
std::unique_ptr<IndexUniqueIds> index_cpu_to_gpu(
        faiss::gpu::GpuResourcesProvider* provider,
        int device,
        const faiss::Index& index,
        const faiss::gpu::GpuClonerOptions* options = nullptr);

/** The way back: a multi-assign index with the same lists.
 *
 * The mixture, and what the assigner had learned, stayed with the index that
 * was copied.
 *
 * @param gpu_index     made by index_cpu_to_gpu(), or a GPU index of a type
 *                      that make_multi_assign() has a form for
 */
std::unique_ptr<faiss::Index> index_gpu_to_cpu(
        const faiss::Index& gpu_index,
        const MultiAssign& assigner = {},
        const FlashGMMOptions& gmm = {});

} // namespace faiss_flashgmm
