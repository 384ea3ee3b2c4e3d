# libsodium as Sodium::sodium.  It has no CMake package.  The static library, where there is one, so that
# programs need none to run.
find_path(SODIUM_INCLUDE sodium.h)
find_library(SODIUM_LIBRARY NAMES libsodium.a sodium)
mark_as_advanced(SODIUM_INCLUDE SODIUM_LIBRARY)
if(NOT SODIUM_INCLUDE OR NOT SODIUM_LIBRARY)
  message(FATAL_ERROR "No libsodium (sodium.h, libsodium.a or .so): run scripts/install.sh, or install your system's "
                      "package (Debian: libsodium-dev).")
endif()
add_library(Sodium::sodium UNKNOWN IMPORTED)
set_target_properties(Sodium::sodium PROPERTIES
  IMPORTED_LOCATION "${SODIUM_LIBRARY}"
  INTERFACE_INCLUDE_DIRECTORIES "${SODIUM_INCLUDE}")
