# What threads of a process share, with the tests that use it, as `make test-tsan` builds them: ranks that
# are threads, the rendezvous and the watch, the queue of plans, the trace, saves that training does not wait
# for.
#
# libtorch is not instrumented.  What its code reads and writes is not seen, so a race inside it, or of ours
# with it, is not found; its mutexes and threads are, since the sanitizer replaces those of the system.
# Whatever of ours it calls back is.  So these pieces are chosen to use little of it: tensors as memory.
include(cmake/Torch.cmake)
include(cmake/Sodium.cmake)
find_package(GTest REQUIRED)
find_package(rapidcheck REQUIRED)

file(GLOB shared_sources CONFIGURE_DEPENDS
  src/run/comm/*.cc src/run/comm/gloo/*.cc src/run/comm/rendezvous/*.cc)
# What they call: memory that is counted, and kernels that copy and add.
file(GLOB called_sources CONFIGURE_DEPENDS
  src/run/memory/*.cc src/run/device/*.cc src/run/kernels/*.cc src/run/kernels/cpu/*.cc src/run/kernels/aten/*.cc)
file(GLOB saved_sources CONFIGURE_DEPENDS  # what is written of a rank, and how
  src/run/train/background_work.cc src/run/train/checkpoint*.cc src/run/train/files.cc src/run/execute/gather.cc
  src/run/weights/*.cc)
list(APPEND shared_sources ${called_sources} ${saved_sources}
  src/run/execute/trace.cc src/run/train/plan_queue.cc src/run/cuda/absent.cc src/run/kernels/cuda/absent.cc)
file(GLOB alone CONFIGURE_DEPENDS src/run/kernels/cpu/*.cc)  # as in CMakeLists.txt
set_source_files_properties(${alone} src/run/comm/gloo/wire.cc src/run/weights/normal.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
add_library(paradyse_shared STATIC ${shared_sources} tests/support/processes.cc)
target_link_libraries(paradyse_shared
  PUBLIC paradyse_plan Torch::cpu Threads::Threads fmt::fmt Sodium::sodium GTest::gtest_main GTest::gmock
         rapidcheck rapidcheck_gtest)
unite(paradyse_shared)
target_precompile_headers(paradyse_shared PRIVATE
  <ATen/ATen.h> ${plan_headers} <atomic> <chrono> <cstring> <mutex> <thread> <gtest/gtest.h> <gmock/gmock.h>)

# Those of threads: forks of a process with the sanitizer's own threads are none.
set(filter_communicator --gtest_filter=-*gloo*:*DeathTest*)
foreach(name rendezvous wire_proof watch background communicator)
  add_executable(threads.${name} tests/run/${name}_test.cc)
  target_link_libraries(threads.${name} PRIVATE paradyse_shared)
  target_compile_definitions(threads.${name} PRIVATE PARADYSE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  target_precompile_headers(threads.${name} REUSE_FROM paradyse_shared)
  add_test(NAME threads.${name} COMMAND threads.${name} ${filter_${name}})
  set_tests_properties(threads.${name} PROPERTIES ENVIRONMENT
    "TSAN_OPTIONS=halt_on_error=1 second_deadlock_stack=1 suppressions=${CMAKE_SOURCE_DIR}/cmake/tsan.supp")
endforeach()
