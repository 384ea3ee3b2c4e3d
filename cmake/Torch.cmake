# The CPU part of libtorch as two imported targets, Torch::cpu and Torch::c10.  The wheel's own
# find_package(Torch) insists on a CUDA toolkit, which a build for the CPU does not need.
if(NOT DEFINED PARADYSE_TORCH_DEFAULT)
  set(PARADYSE_TORCH_DEFAULT "${CMAKE_SOURCE_DIR}/.deps/torch-2.11.0")
endif()
set(PARADYSE_TORCH "${PARADYSE_TORCH_DEFAULT}"
    CACHE PATH "Folder with torch/ and nvidia/ of the wheels (scripts/install.sh makes it)")
set(torch_lib "${PARADYSE_TORCH}/torch/lib")
set(torch_include "${PARADYSE_TORCH}/torch/include")
set(torch_cuda_lib "${PARADYSE_TORCH}/nvidia/cu13/lib")  # libcudart, libcupti

if(NOT EXISTS "${torch_lib}/libtorch_cpu.so")
  message(FATAL_ERROR "No libtorch in ${PARADYSE_TORCH}: run scripts/install.sh, or give "
                      "-DPARADYSE_TORCH=FOLDER, or -DPARADYSE_RUN=OFF for the plan side alone.")
endif()

# A wheel that pip installed has a copy of fmt among its headers, which would hide the one that we
# link (scripts/install.sh leaves it out): links to all the others, then.
if(EXISTS "${torch_include}/fmt")
  file(GLOB headers RELATIVE "${torch_include}" "${torch_include}/*")
  list(REMOVE_ITEM headers fmt)
  foreach(name IN LISTS headers)
    file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/torch_include")
    file(CREATE_LINK "${torch_include}/${name}" "${CMAKE_BINARY_DIR}/torch_include/${name}" SYMBOLIC)
  endforeach()
  set(torch_include "${CMAKE_BINARY_DIR}/torch_include")
endif()

# Our std::string has to be theirs.
file(STRINGS "${torch_lib}/libc10.so" torch_cxx11_abi REGEX "__cxx11" LIMIT_COUNT 1)
if(NOT torch_cxx11_abi)
  message(FATAL_ERROR "${torch_lib} was built with _GLIBCXX_USE_CXX11_ABI=0; take a newer wheel.")
endif()

add_library(Torch::c10 SHARED IMPORTED)
set_target_properties(Torch::c10 PROPERTIES
  IMPORTED_LOCATION "${torch_lib}/libc10.so"
  IMPORTED_SONAME libc10.so
  INTERFACE_INCLUDE_DIRECTORIES "${torch_include};${torch_include}/torch/csrc/api/include"
  INTERFACE_COMPILE_DEFINITIONS _GLIBCXX_USE_CXX11_ABI=1)

add_library(Torch::cpu SHARED IMPORTED)
set_target_properties(Torch::cpu PROPERTIES
  IMPORTED_LOCATION "${torch_lib}/libtorch_cpu.so"
  IMPORTED_SONAME libtorch_cpu.so
  INTERFACE_LINK_LIBRARIES Torch::c10
  INTERFACE_LINK_OPTIONS "LINKER:-rpath-link,${torch_lib};LINKER:-rpath-link,${torch_cuda_lib}")
