# Programs with Conflux inside, built as other people's are: from the public header and the two libraries.  Strictly, so
# that the header is clean in each of these languages.  The examples are for reading; the tests say what they rest on.

enable_language(CXX)

# embed(NAME FILE LIBRARY [FLAGS...])
function(embed name file library)
  add_executable(embed_${name} tests/embed/${file})
  target_link_libraries(embed_${name} PRIVATE ${library} Threads::Threads m ${CMAKE_DL_LIBS})
  target_compile_options(embed_${name} PRIVATE -pedantic ${ARGN})
  set_target_properties(embed_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME embed_${name} COMMAND embed_${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(embed_${name} PROPERTIES TIMEOUT 300)
  if(CONFLUX_SANITIZE MATCHES thread)
    set_tests_properties(embed_${name} PROPERTIES ENVIRONMENT # as for tests/c
      "OMP_THREAD_LIMIT=1;TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/tsan.supp")
  endif()
endfunction()

embed(train train.c libconflux_host -std=c99)
embed(serve serve.cpp libconflux_host -std=c++17)
embed(alone alone.c libconflux -std=c99)

# Not called *_test, as those of tests/c are, which a bundle carries.
set(test_header -std=c11 -I${CMAKE_SOURCE_DIR}/tests/c)
embed(engine engine_test.c libconflux_host ${test_header})
embed(stops stops_test.c libconflux_host ${test_header})
embed(threads threads_test.c libconflux_host ${test_header})
embed(many many_test.c libconflux_host ${test_header})
if(NOT CONFLUX_SANITIZE MATCHES thread) # stacks, memory and floating-point modes are one thread's: there is no race to find
  embed(hosts hosts_test.c libconflux_host ${test_header} -frounding-math)
  embed(limits limits_test.c libconflux_host ${test_header})
endif()
embed(plugin plugin_test.c "" ${test_header})
add_dependencies(embed_plugin libconflux_host)
set_property(TEST embed_plugin APPEND PROPERTY ENVIRONMENT
  "CONFLUX_HOST_LIBRARY=$<TARGET_FILE:libconflux_host>")
