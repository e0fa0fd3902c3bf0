# SPDX-License-Identifier: Apache-2.0
# For which compiler, processor and system the CPU part is, and the options that differ. What is
# different in the sources is in src/platform.h and src/platform.cpp. Included from the top.
#
# SCANRNN_INCLUDE_OPTION  what stands before a header that is included ahead of a source
# SCANRNN_OPTION_PREFIX   what stands before any other option of GCC and Clang
# SCANRNN_HIDE_ARCHIVES   options of the linker
# SCANRNN_HERE            in an rpath: the folder of the library that has it
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "^(GNU|Clang|AppleClang|IntelLLVM)$")
  message(FATAL_ERROR "scanrnn cannot be built with ${CMAKE_CXX_COMPILER_ID}: its kernels need GCC or "
    "Clang, which inline all that they are told to. On Windows, take clang-cl: cmake -T ClangCL, or "
    "-DCMAKE_CXX_COMPILER=clang-cl")
endif()
if(WIN32 AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  message(FATAL_ERROR "scanrnn cannot be built with GCC for Windows, which does not align the stack "
    "to the vectors of AVX (GCC bug 54412). Take Clang")
endif()

set(processors ${CMAKE_SYSTEM_PROCESSOR})
if(APPLE AND CMAKE_OSX_ARCHITECTURES)
  set(processors ${CMAKE_OSX_ARCHITECTURES})
endif()
foreach(processor IN LISTS processors)
  if(NOT processor MATCHES "^(x86_64|AMD64|amd64|x64)$" OR NOT CMAKE_SIZEOF_VOID_P EQUAL 8)
    message(FATAL_ERROR "scanrnn cannot be built for ${processor}: its CPU kernels are for x86-64. On "
      "a Mac with Apple silicon, -DCMAKE_OSX_ARCHITECTURES=x86_64 builds what Rosetta runs")
  endif()
endforeach()

if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  message(WARNING "scanrnn is tested on Linux alone. Its CPU part is kept free of what "
    "${CMAKE_SYSTEM_NAME} does not have, and nobody has run it there")
endif()
if(WIN32 AND BUILD_SHARED_LIBS)
  message(STATUS "scanrnn: a static library, since nothing says __declspec(dllexport)")
  set(BUILD_SHARED_LIBS OFF)
endif()

set(SCANRNN_INCLUDE_OPTION "SHELL:-include ")
set(SCANRNN_OPTION_PREFIX "")
if(CMAKE_CXX_COMPILER_FRONTEND_VARIANT STREQUAL "MSVC")  # clang-cl
  set(SCANRNN_INCLUDE_OPTION /FI)
  set(SCANRNN_OPTION_PREFIX /clang:)
endif()
# What comes out of static archives stays inside: a process may have another copy of it, and some
# compilers bring their own C++ runtime as an archive. Elsewhere than with ELF that is so anyhow.
set(SCANRNN_HIDE_ARCHIVES "")
set(SCANRNN_HERE "$ORIGIN")
if(APPLE)
  set(SCANRNN_HERE "@loader_path")
elseif(NOT WIN32)
  set(SCANRNN_HIDE_ARCHIVES LINKER:--exclude-libs,ALL)
endif()
