# Installation: libraries and public headers, the CMake package and the
# pkg-config files.

include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/faiss_flashgmm)

get_property(libraries GLOBAL PROPERTY FLASHGMM_LIBRARIES)
install(
    TARGETS ${libraries}
    EXPORT faiss_flashgmmTargets
    FILE_SET HEADERS)
install(
    EXPORT faiss_flashgmmTargets
    NAMESPACE faiss_flashgmm::
    DESTINATION ${package_dir})

configure_package_config_file(
    cmake/faiss_flashgmmConfig.cmake.in faiss_flashgmmConfig.cmake
    INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may break its users.
write_basic_package_version_file(
    faiss_flashgmmConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(
    FILES
        ${PROJECT_BINARY_DIR}/faiss_flashgmmConfig.cmake
        ${PROJECT_BINARY_DIR}/faiss_flashgmmConfigVersion.cmake
        cmake/FlashgmmBLAS.cmake
    DESTINATION ${package_dir})

file(RELATIVE_PATH FLASHGMM_PC_PREFIX
    /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
# Plain `pkg-config --libs` must link the static library too, hence Libs and
# not Libs.private.
list(JOIN BLAS_LIBRARIES " " blas_libs)
set(FLASHGMM_PC_CORE_LIBS "${blas_libs} ${OpenMP_CXX_FLAGS}")
set(FLASHGMM_PC_CUDA_LIBS "")
if(FLASHGMM_CUDA)
    set(FLASHGMM_PC_CUDA_LIBS
        "-lfaiss_flashgmm_cuda -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl -lpthread")
endif()
foreach(name IN ITEMS faiss_flashgmm_core faiss_flashgmm)
    configure_file(cmake/${name}.pc.in ${name}.pc @ONLY)
    install(
        FILES ${PROJECT_BINARY_DIR}/${name}.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
