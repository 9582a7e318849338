# Sets FLASHGMM_FAISS_GPU if FAISS is 1.10 or newer, where use_cuvs has its name,
# and was built with its GPU part, whose headers include those of CUDA and of
# cuBLAS.

include(CheckCXXSourceCompiles)
find_package(CUDAToolkit QUIET)
if(CUDAToolkit_FOUND)
    set(CMAKE_REQUIRED_FLAGS -std=c++20)
    set(CMAKE_REQUIRED_INCLUDES ${CUDAToolkit_INCLUDE_DIRS})
    set(CMAKE_REQUIRED_LIBRARIES faiss)
    check_cxx_source_compiles(
        "#include <faiss/gpu/GpuCloner.h>
         int main() {
             faiss::gpu::GpuClonerOptions options;
             options.use_cuvs = false;
             return faiss::gpu::index_cpu_to_gpu(
                 nullptr, 0, nullptr, &options) != nullptr;
         }"
        FLASHGMM_FAISS_GPU)
    unset(CMAKE_REQUIRED_FLAGS)
    unset(CMAKE_REQUIRED_INCLUDES)
    unset(CMAKE_REQUIRED_LIBRARIES)
endif()
