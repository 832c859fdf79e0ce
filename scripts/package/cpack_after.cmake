# Run by cpack when its packages are made: puts back what cpack.cmake has put aside.
cmake_minimum_required(VERSION 3.25)
list(GET CPACK_INSTALL_CMAKE_PROJECTS 0 build)
file(REMOVE ${build}/install_manifest.txt)
if(EXISTS ${build}/install_manifest.before)
  file(RENAME ${build}/install_manifest.before ${build}/install_manifest.txt)
endif()
