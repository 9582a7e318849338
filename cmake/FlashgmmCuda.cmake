# The CUDA language, for 80, 86, 89 and 90a unless told otherwise.

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90a-real 90-virtual)
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

# Before 3.26, CMake does not know that nvcc speaks C++20.
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
