# The Python package: paradyse/ with the module _plan, its stub, and what is pure Python, put together in
# ${CMAKE_BINARY_DIR}/python (PYTHONPATH), and in the wheel.
#
# nanobind comes from the wheels of scripts/install.sh, or from who builds the wheel.  Without it, or
# without Python's headers, there is no package: PARADYSE_PYTHON_MISSING says why.
set(PARADYSE_PYTHON_HOME ${CMAKE_SOURCE_DIR}/.deps/python-3.11)
set(required QUIET)
if(PARADYSE_WHEEL)
  set(required REQUIRED)
endif()
find_package(Python 3.10 COMPONENTS Interpreter Development.Module ${required})
if(Python_FOUND)
  set(nanobind_ROOT ${PARADYSE_PYTHON_HOME}/nanobind/cmake)
  if(PARADYSE_WHEEL)
    execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
                    OUTPUT_VARIABLE nanobind_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
  find_package(nanobind CONFIG ${required})
endif()
if(NOT Python_FOUND)
  set(PARADYSE_PYTHON_MISSING "no Python with headers (Debian: python3-dev)")
elseif(NOT nanobind_FOUND)
  set(PARADYSE_PYTHON_MISSING "no nanobind (scripts/install.sh)")
elseif(NOT PARADYSE_WHEEL AND NOT Python_VERSION MATCHES "^3[.]11[.]")
  set(PARADYSE_PYTHON_MISSING "Python ${Python_VERSION}: the wheels of scripts/install.sh are for 3.11")
endif()
if(PARADYSE_PYTHON_MISSING)
  message(STATUS "Without the Python package: ${PARADYSE_PYTHON_MISSING}")
  return()
endif()

set(python_package ${CMAKE_BINARY_DIR}/python/paradyse)
file(GLOB python_bindings CONFIGURE_DEPENDS python/bindings/*.cc)
nanobind_add_module(paradyse_python NB_STATIC NOMINSIZE ${python_bindings})
set_property(TARGET nanobind-static PROPERTY SYSTEM ON)  # its headers' warnings are not ours
target_link_libraries(paradyse_python PRIVATE paradyse_plan)
set_target_properties(paradyse_python PROPERTIES
  OUTPUT_NAME _plan
  LIBRARY_OUTPUT_DIRECTORY ${python_package})

# The pure part is copied, so that the folder is a package as it is installed.
file(GLOB_RECURSE python_sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}/python/paradyse
     python/paradyse/*.py)
foreach(source IN LISTS python_sources)
  configure_file(python/paradyse/${source} ${python_package}/${source} COPYONLY)
endforeach()
file(CONFIGURE OUTPUT ${python_package}/_version.py CONTENT "__version__ = \"${PROJECT_VERSION}\"\n")

nanobind_add_stub(paradyse_stub
  MODULE paradyse._plan
  PYTHON_PATH ${CMAKE_BINARY_DIR}/python
  OUTPUT ${python_package}/_plan.pyi
  MARKER_FILE ${python_package}/py.typed
  DEPENDS paradyse_python)

if(PARADYSE_WHEEL)
  install(TARGETS paradyse_python LIBRARY DESTINATION paradyse)
  install(DIRECTORY ${python_package}/ DESTINATION paradyse
          FILES_MATCHING PATTERN "*.py" PATTERN "*.pyi" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)
endif()
