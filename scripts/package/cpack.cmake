# Read by cpack before it makes a package, with the settings of install.cmake.
cmake_minimum_required(VERSION 3.25)
list(GET CPACK_INSTALL_CMAKE_PROJECTS 0 build)

# cpack installs, and writes down where: what was installed before is what `uninstall` is about.
if(EXISTS ${build}/install_manifest.txt)
  file(RENAME ${build}/install_manifest.txt ${build}/install_manifest.before)
endif()

# Which packages ours needs.  Not by CPACK_DEBIAN_PACKAGE_SHLIBDEPS, which asks for the libraries of the CUDA plugin,
# too: those are the machine's own, and without them the CPU serves.
if(CPACK_GENERATOR STREQUAL DEB)
  find_program(SHLIBDEPS dpkg-shlibdeps REQUIRED)
  file(GLOB ours ${build}/bin/conflux ${build}/bin/conflux-run ${build}/lib/libconflux.so ${build}/lib/libconflux_host.so)
  file(WRITE ${build}/generated/debian/control "") # without which it does not run
  execute_process(COMMAND ${SHLIBDEPS} -O --ignore-missing-info -l${build}/lib ${ours} WORKING_DIRECTORY ${build}/generated
    OUTPUT_VARIABLE depends ERROR_QUIET COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE "^.*shlibs:Depends=([^\n]*)\n.*$" "\\1" CPACK_DEBIAN_PACKAGE_DEPENDS "${depends}")
endif()
