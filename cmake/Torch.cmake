# The CPU part of libtorch as two imported targets, Torch::cpu and Torch::c10.  The wheel's own
# find_package(Torch) insists on a CUDA toolkit, which a build for the CPU does not need.
if(NOT DEFINED PARADYSE_TORCH_DEFAULT)
  set(PARADYSE_TORCH_DEFAULT "${CMAKE_SOURCE_DIR}/.deps/torch-2.11.0")
endif()
set(PARADYSE_TORCH "${PARADYSE_TORCH_DEFAULT}" CACHE PATH
    "A libtorch: folder with torch/ and nvidia/ of the wheels (scripts/install.sh makes it), or with lib/ and include/")
# Three folders have it: site-packages, its torch/, an unpacked libtorch.
set(torch_home "${PARADYSE_TORCH}/torch")
if(NOT EXISTS "${torch_home}/lib/libtorch_cpu.so")
  set(torch_home "${PARADYSE_TORCH}")
endif()
cmake_path(GET torch_home PARENT_PATH torch_beside)
set(torch_lib "${torch_home}/lib")
set(torch_include "${torch_home}/include")
set(torch_cuda_lib "${torch_beside}/nvidia/cu13/lib")  # libcudart, libcupti

if(NOT EXISTS "${torch_lib}/libtorch_cpu.so" OR NOT EXISTS "${torch_lib}/libc10.so")
  message(FATAL_ERROR "No libtorch in ${PARADYSE_TORCH}: neither lib/libtorch_cpu.so nor "
                      "torch/lib/libtorch_cpu.so with libc10.so beside it.  Run scripts/install.sh, or give "
                      "a libtorch 2.11 as make TORCH=FOLDER (-DPARADYSE_TORCH=FOLDER), or "
                      "-DPARADYSE_RUN=OFF for the plan side alone.")
endif()

# Kernels are called by signatures that change between versions.
set(torch_wanted 2.11)
set(torch_version_header "${torch_include}/torch/headeronly/version.h")
if(NOT EXISTS "${torch_version_header}")  # before 2.9
  set(torch_version_header "${torch_include}/torch/csrc/api/include/torch/version.h")
endif()
if(NOT EXISTS "${torch_version_header}")
  message(FATAL_ERROR "${torch_home} has no headers (include/torch/); ParaDySe needs a whole libtorch ${torch_wanted}.")
endif()
file(STRINGS "${torch_version_header}" torch_version REGEX "define TORCH_VERSION_(MAJOR|MINOR) ")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*" "\\1.\\2" torch_version "${torch_version}")
if(NOT torch_version STREQUAL torch_wanted)
  message(FATAL_ERROR "${torch_home} is libtorch ${torch_version}; ParaDySe needs ${torch_wanted}.  Give one of "
                      "that version as make TORCH=FOLDER, or leave TORCH out to download it.")
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
  message(FATAL_ERROR "${torch_lib} has the old ABI (_GLIBCXX_USE_CXX11_ABI=0); ParaDySe needs the new one: take "
                      "the wheel of PyPI, or the libtorch named cxx11-abi.")
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
