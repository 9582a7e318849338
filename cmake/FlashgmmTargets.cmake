# flashgmm_add_library(<target> EXPORT_NAME <name>
#                      HEADERS <file>... SOURCES <file>...)
#
# A library of this project, known as faiss_flashgmm::<name> inside the build
# and after installation. HEADERS are the public ones: they are installed, and
# each is compiled alone as a test. Forces no flags on those who link it.
function(flashgmm_add_library target)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "EXPORT_NAME" "HEADERS;SOURCES")
    add_library(${target} ${arg_SOURCES})
    add_library(faiss_flashgmm::${arg_EXPORT_NAME} ALIAS ${target})
    target_sources(
        ${target}
        PUBLIC
            FILE_SET HEADERS
            BASE_DIRS ${PROJECT_SOURCE_DIR}
            FILES ${arg_HEADERS})
    set_target_properties(
        ${target}
        PROPERTIES
            EXPORT_NAME ${arg_EXPORT_NAME}
            POSITION_INDEPENDENT_CODE ON
            VERSION ${PROJECT_VERSION}
            SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
    target_compile_features(${target} PUBLIC cxx_std_20)
    set_property(GLOBAL APPEND PROPERTY FLASHGMM_LIBRARIES ${target})
    flashgmm_warnings(${target})
endfunction()

# The warnings that this project's own code must be free of.
function(flashgmm_warnings target)
    set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
    set(warnings -Wall -Wextra)
    if(FLASHGMM_WERROR)
        list(APPEND warnings -Werror)
    endif()
    if(CMAKE_CXX_COMPILER_ID STREQUAL GNU
       AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
        # GCC 12 warns about its own std::string (GCC bug 105651).
        list(APPEND warnings -Wno-restrict)
    endif()
    target_compile_options(
        ${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>")
endfunction()

# flashgmm_add_executable(<name> SOURCES <file>... [LIBRARIES <target>...])
#
# A program of this project. It links the FAISS face unless told otherwise.
function(flashgmm_add_executable name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBRARIES")
    if(NOT arg_LIBRARIES)
        set(arg_LIBRARIES faiss_flashgmm::faiss_flashgmm)
    endif()
    add_executable(${name} ${arg_SOURCES})
    target_link_libraries(${name} PRIVATE ${arg_LIBRARIES})
    flashgmm_warnings(${name})
endfunction()

# flashgmm_add_test(<name> SOURCES <file>... [LABELS <label>...]
#                   [LIBRARIES <target>...] [TIMEOUT <seconds>])
#
# A GoogleTest program, each of its cases a test of ctest named <name>.<case>.
# tests/ is on its include path.
function(flashgmm_add_test name)
    cmake_parse_arguments(
        PARSE_ARGV 1 arg "" "TIMEOUT" "SOURCES;LABELS;LIBRARIES")
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 300)
    endif()
    flashgmm_add_executable(
        ${name} SOURCES ${arg_SOURCES} LIBRARIES ${arg_LIBRARIES})
    target_link_libraries(${name} PRIVATE GTest::gtest_main)
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    gtest_discover_tests(
        ${name}
        DISCOVERY_MODE PRE_TEST
        NO_PRETTY_VALUES
        TEST_PREFIX ${name}.
        PROPERTIES
            LABELS "${arg_LABELS}"
            TIMEOUT ${arg_TIMEOUT}
            # Tests run side by side: waiting threads must not spin.
            ENVIRONMENT OMP_WAIT_POLICY=passive)
endfunction()
