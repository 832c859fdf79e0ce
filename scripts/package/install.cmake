# Installing: which file goes where, how outside projects find it, how it is taken away again, and packages.
#
#   cmake --install build --prefix P         the files, below P; DESTDIR is put before it
#   cmake --build build --target uninstall   takes away what was installed last
#   (cd build && cpack -G DEB)               conflux_VERSION_ARCHITECTURE.deb; -G TGZ: an archive
#
# Nothing that is installed knows the prefix: paths are relative to the file that they stand in, so the tree can be
# moved, and a package be unpacked anywhere.
set(package ${CMAKE_CURRENT_LIST_DIR})
set(lua_directory ${CMAKE_INSTALL_DATADIR}/lua/5.1)
set(cmake_directory ${CMAKE_INSTALL_LIBDIR}/cmake/conflux)
set(pkgconfig_directory ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
set(generated ${CMAKE_BINARY_DIR}/generated)

# ---- libraries, program, header -----------------------------------------------------------------------------

set(libraries libconflux)
if(TARGET libconflux_host)
  get_target_property(type libconflux_host TYPE)
  if(type STREQUAL SHARED_LIBRARY)
    list(APPEND libraries libconflux_host)
    set_target_properties(libconflux_host PROPERTIES EXPORT_NAME host INSTALL_RPATH "$ORIGIN")
  endif()
endif()
set_target_properties(libconflux PROPERTIES EXPORT_NAME conflux)
install(TARGETS conflux conflux-run)
install(TARGETS ${libraries} EXPORT conflux INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES core/conflux.h TYPE INCLUDE)

# ---- Lua ----------------------------------------------------------------------------------------------------

install(DIRECTORY lua/conflux DESTINATION ${lua_directory} FILES_MATCHING PATTERN *.lua)

# Where plain luajit finds the library, as seen from the files that load it.
file(RELATIVE_PATH up /${lua_directory}/conflux /${CMAKE_INSTALL_LIBDIR})
file(CONFIGURE OUTPUT ${generated}/installed.lua CONTENT [[
-- Written by the build: where the C library lies, as seen from here.
return "@up@/$<TARGET_SONAME_FILE_NAME:libconflux>"
]] @ONLY)
file(GENERATE OUTPUT ${generated}/installed/installed.lua INPUT ${generated}/installed.lua)
install(FILES ${generated}/installed/installed.lua DESTINATION ${lua_directory}/conflux)

# A rock, which LuaRocks makes by `cmake --install build --component rock` and then lays out in its own way: Lua finds
# the library on package.cpath, the library finds the plugin beside itself.
add_custom_target(rock DEPENDS libconflux)
install(DIRECTORY lua/conflux DESTINATION lua COMPONENT rock EXCLUDE_FROM_ALL FILES_MATCHING PATTERN *.lua)
install(FILES $<TARGET_FILE:libconflux> DESTINATION lib RENAME libconflux.so COMPONENT rock EXCLUDE_FROM_ALL)
if(TARGET conflux_cuda)
  add_dependencies(rock conflux_cuda)
  install(FILES ${CMAKE_BINARY_DIR}/lib/libconflux_cuda.so DESTINATION lib COMPONENT rock EXCLUDE_FROM_ALL)
endif()

# ---- for people ---------------------------------------------------------------------------------------------

install(FILES README.md TYPE DOC)
install(FILES LICENSE TYPE DOC RENAME copyright) # its name on Debian
install(FILES scripts/x2.lua scripts/fashion.lua DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
foreach(file_in IN ITEMS conflux.1:man/man1 conflux.bash:bash-completion/completions _conflux:zsh/site-functions
    conflux-run.1:man/man1 conflux-run.bash:bash-completion/completions _conflux-run:zsh/site-functions)
  string(REPLACE ":" ";" file_in ${file_in})
  list(GET file_in 0 file)
  list(GET file_in 1 place)
  string(REPLACE .bash "" name ${file})
  if(EXISTS ${package}/${file})
    install(FILES ${package}/${file} DESTINATION ${CMAKE_INSTALL_DATADIR}/${place} RENAME ${name})
  endif()
endforeach()

# ---- for other projects' builds -----------------------------------------------------------------------------

include(CMakePackageConfigHelpers)
install(EXPORT conflux NAMESPACE conflux:: FILE conflux-targets.cmake DESTINATION ${cmake_directory})
configure_package_config_file(${package}/conflux-config.cmake.in ${generated}/conflux-config.cmake
  INSTALL_DESTINATION ${cmake_directory} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${generated}/conflux-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${generated}/conflux-config.cmake ${generated}/conflux-config-version.cmake
  DESTINATION ${cmake_directory})

file(RELATIVE_PATH up /${pkgconfig_directory} /)
string(REGEX REPLACE "/$" "" up ${up})
foreach(library IN LISTS libraries)
  string(REPLACE lib "" name ${library})
  string(REPLACE _ - file ${name})
  configure_file(${package}/${file}.pc.in ${generated}/${file}.pc @ONLY)
  install(FILES ${generated}/${file}.pc DESTINATION ${pkgconfig_directory})
endforeach()

# ---- uninstall ----------------------------------------------------------------------------------------------

add_custom_target(uninstall
  COMMAND ${CMAKE_COMMAND} -D MANIFEST=${CMAKE_BINARY_DIR}/install_manifest.txt
          -D HEADER=${CMAKE_INSTALL_INCLUDEDIR}/conflux.h -P ${package}/uninstall.cmake
  COMMENT "Taking away what was installed last" VERBATIM)

# ---- packages -----------------------------------------------------------------------------------------------

set(CPACK_PACKAGE_VENDOR "The Conflux authors")
set(CPACK_PACKAGE_CONTACT "The Conflux authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "training engine scripted in Lua")
set(CPACK_PACKAGE_DESCRIPTION "Trains models on many devices from one Lua script: an interpreter (conflux),
a launcher of several processes (conflux-run), a library for LuaJIT and one for C programs.")
set(CPACK_GENERATOR TGZ DEB)
set(CPACK_STRIP_FILES ON)
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_PROJECT_CONFIG_FILE ${package}/cpack.cmake)
set(CPACK_POST_BUILD_SCRIPTS ${package}/cpack_after.cmake)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS dataset-fashion-mnist)
if(TARGET conflux_cuda)
  string(APPEND CPACK_DEBIAN_PACKAGE_RECOMMENDS ", libstdc++6") # cpack.cmake asks for none of the plugin's
endif()
set(CPACK_DEBIAN_PACKAGE_SUGGESTS luajit)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_SOURCE_GENERATOR TGZ)
set(CPACK_SOURCE_PACKAGE_FILE_NAME conflux-${PROJECT_VERSION})
set(CPACK_SOURCE_IGNORE_FILES "/build[^/]*/" "/[.]git")
include(CPack)
