# The CUDA part of libtorch as Torch::cuda, with the toolkit's runtime and NCCL.  To link, only these
# are looked at: what libtorch_cuda.so itself needs (cuDNN, cuBLAS, ...) has to be there to run.
set(PARADYSE_TORCH_CUDA "${CMAKE_SOURCE_DIR}/.deps/torch-2.11.0-cuda"
    CACHE PATH "Folder with torch/ and nvidia/ of the wheels (scripts/install.sh cuda makes it)")
set(cuda_lib "${PARADYSE_TORCH_CUDA}/torch/lib")
if(NOT EXISTS "${cuda_lib}/libtorch_cuda.so")
  message(FATAL_ERROR "No libtorch_cuda in ${PARADYSE_TORCH_CUDA}: run scripts/install.sh cuda, or "
                      "give -DPARADYSE_TORCH_CUDA=FOLDER.")
endif()

if(NOT CUDAToolkit_ROOT AND EXISTS /usr/local/cuda)
  set(CUDAToolkit_ROOT /usr/local/cuda)
endif()
find_package(CUDAToolkit)
if(NOT CUDAToolkit_FOUND OR CUDAToolkit_VERSION VERSION_LESS 13 OR
   CUDAToolkit_VERSION VERSION_GREATER_EQUAL 14)
  message(FATAL_ERROR "The preset `cuda` needs a CUDA 13 toolkit, found: "
                      "'${CUDAToolkit_VERSION}'; install one, or give -DCUDAToolkit_ROOT=FOLDER.")
endif()

# Kernels of our own (src/run/cuda/*.cu): code for each generation that has its own, from A100 on, and
# the last one's PTX for what comes later.  Libraries of torch's own wheel bring the runtime.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)
endif()
if(NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
enable_language(CUDA)
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know this nvcc
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()

# The toolkit's NCCL, else that of the wheel.
set(nccl_wheel "${PARADYSE_TORCH_CUDA}/nvidia/nccl")
find_path(NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS ${nccl_wheel}/include)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2
             HINTS ${CUDAToolkit_LIBRARY_DIR} PATHS ${nccl_wheel}/lib)
if(NOT NCCL_INCLUDE OR NOT NCCL_LIBRARY)
  message(FATAL_ERROR "No nccl.h and libnccl: neither the CUDA toolkit nor ${nccl_wheel} has them; "
                      "run scripts/install.sh cuda.")
endif()

add_library(Torch::c10_cuda SHARED IMPORTED)
set_target_properties(Torch::c10_cuda PROPERTIES
  IMPORTED_LOCATION "${cuda_lib}/libc10_cuda.so"
  IMPORTED_SONAME libc10_cuda.so)
add_library(Torch::cuda SHARED IMPORTED)
set_target_properties(Torch::cuda PROPERTIES
  IMPORTED_LOCATION "${cuda_lib}/libtorch_cuda.so"
  IMPORTED_SONAME libtorch_cuda.so
  INTERFACE_LINK_LIBRARIES "Torch::c10_cuda;$<LINK_ONLY:CUDA::cudart>;${NCCL_LIBRARY}"
  # Its kernels register themselves; nobody names a symbol of it.
  INTERFACE_LINK_OPTIONS "LINKER:--no-as-needed;LINKER:--allow-shlib-undefined")

# For the sources that include them, alone: all else compiles to the same as in a build without CUDA,
# and so comes from ccache after one.
set(PARADYSE_CUDA_HEADERS ${CUDAToolkit_INCLUDE_DIRS} ${NCCL_INCLUDE})
list(REMOVE_DUPLICATES PARADYSE_CUDA_HEADERS)
list(TRANSFORM PARADYSE_CUDA_HEADERS PREPEND -isystem)
