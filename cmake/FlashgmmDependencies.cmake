# What the libraries link. faiss_flashgmmConfig.cmake.in repeats the list.

# Debian's faiss target links OpenMP::OpenMP_CXX without finding it.
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(hwy REQUIRED)
if(FLASHGMM_FAISS AND NOT TARGET faiss)
    find_package(faiss REQUIRED)
endif()
if(FLASHGMM_FAISS)
    include(FlashgmmFaissGpu)
endif()
include(FlashgmmBLAS)
if(FLASHGMM_TOOLS)
    find_package(CLI11 REQUIRED)
endif()

# Optional, for the vector files of ann-benchmarks. CMake's own module would
# need the C language.
find_path(HDF5_INCLUDE_DIR hdf5.h PATH_SUFFIXES hdf5/serial)
find_library(HDF5_LIBRARY NAMES hdf5_serial hdf5)
mark_as_advanced(HDF5_INCLUDE_DIR HDF5_LIBRARY)
set(HDF5_FOUND OFF)
if(HDF5_INCLUDE_DIR AND HDF5_LIBRARY)
    set(HDF5_FOUND ON)
endif()
