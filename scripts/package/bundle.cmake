# The bundle: Conflux in one directory that runs wherever it is unpacked, on any x86-64 Linux with a glibc that is not
# older than the one it was built with.  Included by CMakeLists.txt it defines the targets `bundle` and `bundle-tests`;
# these run it as a script, which can also be done by hand, after a build:
#
#   cmake -D BUILD=build -D VERSION=0.1.0 [-D TESTS=ON] [-D OUTPUT=DIR] -P scripts/package/bundle.cmake
#
# The files that go in beside our own are found, not listed: an ELF file says what it needs, busted is watched loading
# its modules, and the package manager knows whose files they are and under which licence.  glibc stays out, for it
# must match the machine's own loader and kernel; CUDA's libraries stay out, for they are large and the machine's own.
cmake_minimum_required(VERSION 3.25)
get_filename_component(source ${CMAKE_CURRENT_LIST_DIR}/../.. ABSOLUTE)

# ---- the targets --------------------------------------------------------------------------------------------

if(NOT CMAKE_SCRIPT_MODE_FILE)
  # The C tests, with the names of their programs for their mains; see tests/c/together.c.
  get_property(targets DIRECTORY ${source} PROPERTY BUILDSYSTEM_TARGETS)
  set(programs ${targets})
  list(FILTER programs INCLUDE REGEX "_test$")
  if(programs)
    set(objects ${programs})
    list(TRANSFORM objects REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>")
    set(table ${programs})
    list(TRANSFORM table REPLACE "(.+)" "PROGRAM(\\1)\n")
    list(JOIN table "" table)
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/programs.def CONTENT "${table}" @ONLY)
    add_executable(c_tests EXCLUDE_FROM_ALL tests/c/together.c ${objects})
    target_include_directories(c_tests PRIVATE ${CMAKE_BINARY_DIR}/generated)
    if(TARGET conflux_cuda_rows)
      target_link_libraries(c_tests PRIVATE conflux_cuda_rows)
      set_target_properties(c_tests PROPERTIES LINKER_LANGUAGE CXX)
    endif()
    target_link_libraries(c_tests PRIVATE conflux_static)
    target_link_options(c_tests PRIVATE ${wrap_allocations})
    set_target_properties(c_tests PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests
      BUILD_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}") # of the bundle
  endif()

  # DT_RPATH instead of the usual DT_RUNPATH holds for what our libraries need in their turn, too: in a bundle libdnnl
  # finds its libgomp beside it, though Debian built it without a path.
  foreach(target conflux libconflux libconflux_host c_tests)
    if(TARGET ${target})
      target_link_options(${target} PRIVATE LINKER:--disable-new-dtags)
    endif()
  endforeach()

  set(installed conflux conflux-run libconflux libconflux_host)
  if(TARGET conflux_cuda)
    list(APPEND installed conflux_cuda)
  endif()
  foreach(name bundle bundle-tests)
    string(COMPARE EQUAL ${name} bundle-tests tests)
    if(tests) # with what is copied below
      foreach(target c_tests needing conflux_floor conflux_cuda_emulated fake_nccl fake_cudnn)
        if(TARGET ${target})
          list(APPEND installed ${target})
        endif()
      endforeach()
    endif()
    add_custom_target(${name} DEPENDS ${installed}
      COMMAND ${CMAKE_COMMAND} -D BUILD=${CMAKE_BINARY_DIR} -D VERSION=${PROJECT_VERSION} -D TESTS=${tests}
              -P ${CMAKE_CURRENT_LIST_FILE}
      COMMENT "Making the ${name}" VERBATIM)
  endforeach()
  return()
endif()

# ---- our own files ------------------------------------------------------------------------------------------

if(NOT OUTPUT)
  set(OUTPUT ${BUILD})
endif()
get_filename_component(BUILD ${BUILD} ABSOLUTE)
get_filename_component(OUTPUT ${OUTPUT} ABSOLUTE)
set(name conflux-${VERSION}-bundle)
set(limit 60000000)
if(TESTS)
  set(name ${name}-tests)
  set(limit 67108864) # the most that can be sent to a machine with a GPU here
endif()
set(stage ${OUTPUT}/${name})
find_program(OBJDUMP objdump REQUIRED)
find_program(STRIP strip REQUIRED)

# run(OUT COMMAND...): what a command wrote.  It runs in the root of the sources, where tests find their modules.
function(run out)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${source} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${stage})
# `uninstall` is about the files that were installed before, not about these.
file(GLOB manifest ${BUILD}/install_manifest.txt)
if(manifest)
  file(RENAME ${manifest} ${manifest}.before)
endif()
run(ignored ${CMAKE_COMMAND} --install ${BUILD} --prefix ${stage} --strip)
file(REMOVE ${BUILD}/install_manifest.txt)
if(manifest)
  file(RENAME ${manifest}.before ${manifest})
endif()
file(GLOB_RECURSE lib ${stage}/lib/*/libconflux.so ${stage}/lib/libconflux.so) # lib, or lib/x86_64-linux-gnu
get_filename_component(lib ${lib} DIRECTORY)
file(GLOB plugin ${lib}/libconflux_cuda.so)
if(plugin)
  file(RPATH_SET FILE ${plugin} NEW_RPATH "$ORIGIN") # it also names the toolkit of this machine
endif()
file(COPY ${source}/scripts/x2.lua ${source}/scripts/fashion.lua DESTINATION ${stage}/scripts)
file(COPY ${source}/LICENSE DESTINATION ${stage}/share/licenses/conflux)
set(foreign "") # other people's

# ---- the tests ----------------------------------------------------------------------------------------------

if(TESTS)
  file(COPY ${source}/scripts/package/test DESTINATION ${stage})
  file(COPY ${source}/scripts/bench ${source}/scripts/steps.sh ${source}/scripts/gpu-check DESTINATION ${stage}/scripts)
  file(COPY ${source}/tests/gpu/checks.lua DESTINATION ${stage}/tests/gpu)
  file(COPY ${source}/tests/busted.lua ${source}/tests/spec ${source}/tests/fixtures DESTINATION ${stage}/tests)
  file(COPY ${source}/lua DESTINATION ${stage}) # that the sources keep to their rules is tested, too
  file(COPY ${source}/core/device/ops.def DESTINATION ${stage}/core/device)
  file(COPY ${BUILD}/tests/c_tests ${BUILD}/tests/libraries DESTINATION ${stage}/tests)
  file(COPY ${BUILD}/lib/libconflux_floor.so DESTINATION ${stage}/lib) # where scripts/bench looks
  if(EXISTS ${BUILD}/emulated)
    file(COPY ${BUILD}/emulated DESTINATION ${stage})
  endif()
  file(GLOB_RECURSE binaries ${stage}/tests/c_tests ${stage}/emulated/*.so ${stage}/lib/libconflux_floor.so)
  run(ignored ${STRIP} ${binaries})

  run(modules ${BUILD}/bin/conflux ${source}/scripts/package/modules.lua ${source}/tests/busted.lua)
  string(REGEX MATCHALL "[^\n]+" modules "${modules}")
  file(MAKE_DIRECTORY ${stage}/tests/lua)
  run(ignored cp -RL ${modules} ${stage}/tests/lua)
  list(APPEND foreign ${modules})

  set(data /usr/share/datasets/fashion-mnist)
  if(EXISTS ${data})
    file(COPY ${data} DESTINATION ${stage}/share/datasets)
    list(APPEND foreign ${data})
  endif()
endif()

# ---- the libraries that they need ---------------------------------------------------------------------------

file(GLOB programs ${stage}/bin/conflux ${stage}/tests/c_tests)
file(GLOB_RECURSE libraries ${stage}/lib/*.so ${stage}/emulated/*.so ${stage}/tests/lua/*.so)
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${programs} LIBRARIES ${libraries}
  RESOLVED_DEPENDENCIES_VAR needs UNRESOLVED_DEPENDENCIES_VAR missing
  PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|mvec|pthread|dl|rt|util|resolv)\\.so" # glibc
                      "^lib(cuda|cudart|cublas|cublasLt|cudnn|nccl|nvrtc|nvJitLink)\\.so")
if(missing)
  message(FATAL_ERROR "bundle: not found: ${missing}")
endif()
foreach(file IN LISTS needs)
  cmake_path(IS_PREFIX stage ${file} is_ours)
  if(is_ours)
    continue()
  endif()
  get_filename_component(soname ${file} NAME)
  file(COPY_FILE ${file} ${lib}/${soname})
  file(CHMOD ${lib}/${soname} PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
  file(RPATH_REMOVE FILE ${lib}/${soname}) # it would hide that of our program
  list(APPEND foreign ${file})
endforeach()

# ---- licences -----------------------------------------------------------------------------------------------

find_program(DPKG dpkg-query)
if(NOT DPKG)
  message(FATAL_ERROR "bundle: the licences of what goes in come from Debian's packages, and there is no dpkg-query")
endif()
set(packages "")
foreach(file IN LISTS foreign)
  # dpkg knows a file in /lib by the path in its package, which may begin with /usr or not.
  string(REGEX REPLACE "^(/usr)?/" "*/" pattern ${file})
  run(owners ${DPKG} -S ${pattern})
  string(REGEX MATCHALL "[^\n]+" owners "${owners}")
  foreach(line IN LISTS owners)
    string(REGEX REPLACE ": /.*$" "" line "${line}")
    string(REGEX MATCHALL "[^ ,]+" line "${line}")
    list(APPEND packages ${line})
  endforeach()
endforeach()
list(TRANSFORM packages REPLACE ":.*$" "")
list(REMOVE_DUPLICATES packages)
set(texts "")
foreach(package IN LISTS packages)
  set(copyright /usr/share/doc/${package}/copyright)
  file(MAKE_DIRECTORY ${stage}/share/licenses/${package})
  file(COPY_FILE ${copyright} ${stage}/share/licenses/${package}/copyright)
  file(READ ${copyright} text)
  string(REGEX MATCHALL "/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]" more "${text}")
  list(APPEND texts ${more})
endforeach()
list(REMOVE_DUPLICATES texts)
foreach(file IN LISTS texts) # the long ones, which the others refer to
  get_filename_component(license ${file} NAME)
  file(MAKE_DIRECTORY ${stage}/share/licenses/common-licenses)
  file(COPY_FILE ${file} ${stage}/share/licenses/common-licenses/${license})
endforeach()

# ---- README.txt, and all of it in one file ------------------------------------------------------------------

set(glibc 0)
file(GLOB_RECURSE binaries LIST_DIRECTORIES OFF ${stage}/bin/* ${stage}/*.so ${stage}/*.so.*)
run(versions ${OBJDUMP} -p ${binaries})
string(REGEX MATCHALL "GLIBC_[0-9.]+" versions "${versions}")
list(REMOVE_DUPLICATES versions)
foreach(version IN LISTS versions)
  string(REPLACE "GLIBC_" "" version ${version})
  if(version VERSION_GREATER glibc)
    set(glibc ${version})
  endif()
endforeach()
configure_file(${source}/scripts/package/README.txt.in ${stage}/README.txt @ONLY)

set(archive ${OUTPUT}/${name}.tar.gz)
execute_process(COMMAND ${CMAKE_COMMAND} -E tar czf ${archive} --format=gnutar ${name} WORKING_DIRECTORY ${OUTPUT}
  COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE_RECURSE ${stage})
file(SIZE ${archive} size)
if(size GREATER limit)
  message(FATAL_ERROR "bundle: ${archive} has ${size} bytes, more than ${limit}")
endif()
math(EXPR size "${size} / 1000000")
message("${archive}: ${size} MB, for glibc ${glibc} or newer")
