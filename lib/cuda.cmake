# SPDX-License-Identifier: Apache-2.0
# Decides whether CUDA kernels are built, as SCANRNN_CUDA asks, and says so in SCANRNN_CUDA_SUMMARY.
# Sets SCANRNN_WITH_CUDA and SCANRNN_CUBLAS_INCLUDE_DIR. Included from the top, since a language must
# be enabled above all targets that link with it.
set(SCANRNN_WITH_CUDA OFF)
if(SCANRNN_CUDA STREQUAL "OFF")
  set(SCANRNN_CUDA_SUMMARY "off (SCANRNN_CUDA=OFF)")
  return()
endif()
if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  if(SCANRNN_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SCANRNN_CUDA=ON: the CUDA part is for Linux, not ${CMAKE_SYSTEM_NAME}")
  endif()
  set(SCANRNN_CUDA_SUMMARY "NOT BUILT: it is for Linux, not ${CMAKE_SYSTEM_NAME}")
  return()
endif()

# Machine code for 8.x and 9.0, and PTX of the latter, which a driver compiles for any device that
# came later: PTX of a newer architecture would shut out those in between.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
endif()

set(missing "")
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  set(missing "no working nvcc (set CUDACXX to one)")
else()
  enable_language(CUDA)
  if(CMAKE_CUDA_ARCHITECTURES STREQUAL "native" AND CMAKE_CUDA_ARCHITECTURES_NATIVE)
    set(CMAKE_CUDA_ARCHITECTURES ${CMAKE_CUDA_ARCHITECTURES_NATIVE})  # so that it can be told
  endif()
  find_package(CUDAToolkit QUIET)
  # cuBLASLt is loaded when it is first used; its header comes with the toolkit or with a wheel.
  find_package(Python QUIET COMPONENTS Interpreter)
  file(GLOB wheels "${Python_SITELIB}/nvidia/cu*/include")
  find_path(SCANRNN_CUBLAS_INCLUDE_DIR cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${wheels})
  if(NOT TARGET CUDA::cudart_static)
    set(missing "nvcc, but no libcudart_static.a beside it")
  elseif(NOT SCANRNN_CUBLAS_INCLUDE_DIR)
    set(missing "nvcc, but no cublasLt.h (pip install nvidia-cublas, or set \
SCANRNN_CUBLAS_INCLUDE_DIR)")
  endif()
endif()

if(NOT missing)
  set(SCANRNN_WITH_CUDA ON)
  # nvcc 12.4 has it, too, but not every driver that runs what nvcc 12 compiles: decision 11.
  if(SCANRNN_CUDA_COMPRESS AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>")
  endif()
  list(JOIN CMAKE_CUDA_ARCHITECTURES " " architectures)
  set(SCANRNN_CUDA_SUMMARY "nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${architectures}")
elseif(SCANRNN_CUDA STREQUAL "ON")
  message(FATAL_ERROR "SCANRNN_CUDA=ON: ${missing}")
else()
  set(SCANRNN_CUDA_SUMMARY "NOT BUILT: ${missing}")
endif()
