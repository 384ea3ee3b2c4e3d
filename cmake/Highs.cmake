# HiGHS as the imported target Highs::highs: the solver behind the lab's planner flexsp-milp.  A
# build does without it where it is not there.
if(NOT DEFINED PARADYSE_HIGHS_DEFAULT)
  set(PARADYSE_HIGHS_DEFAULT "${CMAKE_SOURCE_DIR}/.deps/highs-1.15.1")
endif()
set(PARADYSE_HIGHS_FOLDER "${PARADYSE_HIGHS_DEFAULT}"
    CACHE PATH "Folder with include/ and lib/ of HiGHS (scripts/install.sh makes it)")
set(highs_lib "${PARADYSE_HIGHS_FOLDER}/lib/libhighs.so")
set(PARADYSE_HIGHS AUTO CACHE STRING "With HiGHS: ON, OFF, or AUTO, which is where it is there")
if(PARADYSE_HIGHS STREQUAL AUTO AND EXISTS "${highs_lib}")
  set(PARADYSE_WITH_HIGHS ON)
elseif(PARADYSE_HIGHS STREQUAL AUTO)
  set(PARADYSE_WITH_HIGHS OFF)
else()
  set(PARADYSE_WITH_HIGHS ${PARADYSE_HIGHS})
endif()
if(PARADYSE_WITH_HIGHS AND NOT EXISTS "${highs_lib}")
  message(FATAL_ERROR "No libhighs.so in ${PARADYSE_HIGHS_FOLDER}/lib: run scripts/install.sh, or give "
                      "-DPARADYSE_HIGHS_FOLDER=FOLDER; the lab builds without it with "
                      "-DPARADYSE_HIGHS=OFF.")
endif()

if(PARADYSE_WITH_HIGHS)
  add_library(Highs::highs SHARED IMPORTED)
  set_target_properties(Highs::highs PROPERTIES
    IMPORTED_LOCATION "${highs_lib}"
    IMPORTED_SONAME libhighs.so)
endif()
