# The Debian package of `make package`: the program in bin/, and in lib/paradyse/ the libtorch that
# it was built with, in the folders that its own search paths expect.  Debian has none in this version.
include(GNUInstallDirs)
set(private lib/paradyse)  # the program's INSTALL_RPATH names it
set(documents ${CMAKE_INSTALL_DOCDIR})
install(TARGETS paradyse RUNTIME)

# What libtorch_cpu links of its own folder; another libtorch than the wheel has its libgomp-HASH.so.
file(GLOB torch_libraries ${torch_lib}/libtorch_cpu.so ${torch_lib}/libc10.so ${torch_lib}/libgomp*.so*)
install(FILES ${torch_libraries} DESTINATION ${private}/torch/lib)
file(GLOB cuda_libraries ${torch_cuda_lib}/libcudart.so.13 ${torch_cuda_lib}/libcupti.so.13)
if(cuda_libraries)
  install(FILES ${cuda_libraries} DESTINATION ${private}/nvidia/cu13/lib)
endif()

# Licences of all that is packed; `copyright` is where Debian looks.
install(FILES LICENSE DESTINATION ${documents} RENAME copyright)
install(FILES THIRD_PARTY_NOTICES.md README.md CHANGELOG.md DESTINATION ${documents})
file(GLOB licences ${torch_beside}/torch-*.dist-info/licenses ${torch_beside}/nvidia_*.dist-info/licenses)
foreach(folder IN LISTS licences)
  cmake_path(GET folder PARENT_PATH name)
  cmake_path(GET name STEM LAST_ONLY name)
  install(DIRECTORY ${folder}/ DESTINATION ${documents}/licenses/${name})
endforeach()
install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/paradyse)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME paradyse)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_CONTACT "The authors of ParaDySe <paradyse@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains transformers with a parallel plan for each batch")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
    "Trains transformers on sequences whose lengths differ; chooses for each batch how documents are
 split over ranks and what is recomputed.  Contains libtorch ${torch_wanted} (CPU).")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_STRIP_FILES OFF)  # others' libraries stay as they are, and ours has no debug information
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${torch_lib} ${torch_cuda_lib})
include(CPack)
