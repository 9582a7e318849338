# Makes BLAS::BLAS: OpenBLAS where there is one, any other BLAS otherwise.
# Shared by the build and the installed package.

if(NOT TARGET BLAS::BLAS)
    set(BLA_VENDOR OpenBLAS)
    find_package(BLAS QUIET)
    unset(BLA_VENDOR)
    if(NOT BLAS_FOUND)
        find_package(BLAS REQUIRED)
    endif()
endif()
