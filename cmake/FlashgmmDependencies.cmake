# What the libraries link. faiss_flashgmmConfig.cmake.in repeats the list.

# Debian's faiss target links OpenMP::OpenMP_CXX without finding it.
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(hwy REQUIRED)
if(NOT TARGET faiss)
    find_package(faiss REQUIRED)
endif()
include(FlashgmmBLAS)
