# The CUDA plugin, libconflux_cuda.so, where nvcc is found; and its kernels on the CPU, for tests.
#
# CONFLUX_CUDA: ON (fails without nvcc), OFF, AUTO.  CONFLUX_CUDA_ARCHITECTURES: what to compile for, as far as nvcc
# knows it; the last one's intermediate code goes along, for what comes after it.  The default is native to all GPUs
# from Ampere to Hopper (code for sm_80 runs on sm_86 and sm_89, too); newer ones' drivers compile the intermediate code
# at the first use.  The preset "package" is native to Blackwell, too, and takes twice as long.

set(CONFLUX_CUDA AUTO CACHE STRING "Build the CUDA plugin: ON, OFF or AUTO")
set(CONFLUX_CUDA_ARCHITECTURES "80;90" CACHE STRING "What the CUDA plugin is compiled for")
file(GLOB cuda_sources CONFIGURE_DEPENDS core/cuda/*.cu)

# ---- the plugin ---------------------------------------------------------------------------------------------

set(CONFLUX_NVCC "CONFLUX_NVCC-NOTFOUND")
if(CONFLUX_CUDA AND NOT CONFLUX_SANITIZE)
  find_program(CONFLUX_NVCC nvcc HINTS ENV CUDA_HOME PATH_SUFFIXES bin PATHS /usr/local/cuda/bin)
  if(NOT CONFLUX_NVCC AND CONFLUX_CUDA STREQUAL ON)
    message(FATAL_ERROR "CONFLUX_CUDA is ON, but there is no nvcc")
  elseif(NOT CONFLUX_NVCC)
    message(STATUS "There is no nvcc: the CUDA plugin is not built")
  endif()
endif()

if(CONFLUX_NVCC)
  # nvcc is called by itself: CMake's own CUDA language wants a compiler that it knows.
  cmake_path(GET CONFLUX_NVCC PARENT_PATH cuda)
  cmake_path(GET cuda PARENT_PATH cuda)
  set(codes "")
  execute_process(COMMAND ${CONFLUX_NVCC} --list-gpu-code OUTPUT_VARIABLE known)
  foreach(architecture IN LISTS CONFLUX_CUDA_ARCHITECTURES)
    if(known MATCHES "sm_${architecture}[^0-9]")
      list(APPEND codes -gencode arch=compute_${architecture},code=sm_${architecture})
      set(newest ${architecture})
    endif()
  endforeach()
  list(APPEND codes -gencode arch=compute_${newest},code=compute_${newest})
  find_path(CONFLUX_NCCL_INCLUDE nccl.h HINTS ${cuda}/include)
  set(without_nccl nccl_none)
  if(NOT CONFLUX_NCCL_INCLUDE)
    message(STATUS "There is no nccl.h: the CUDA plugin trains on one GPU, or on those that reach each other")
    set(without_nccl nccl)
    set(CONFLUX_NCCL_INCLUDE ${cuda}/include)
  endif()
  find_path(CONFLUX_CUDNN_INCLUDE cudnn.h HINTS ${cuda}/include)
  set(without_cudnn cudnn_none)
  if(NOT CONFLUX_CUDNN_INCLUDE)
    message(STATUS "There is no cudnn.h: the CUDA plugin has no convolutions")
    set(without_cudnn conv)
    set(CONFLUX_CUDNN_INCLUDE ${cuda}/include)
  endif()
  set(objects "")
  foreach(file IN LISTS cuda_sources)
    cmake_path(GET file STEM name)
    if(name STREQUAL without_nccl OR name STREQUAL without_cudnn)
      continue()
    endif()
    set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(OUTPUT ${object}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/cuda
      COMMAND ${CONFLUX_NVCC} -std=c++17 -O3 ${codes} -I${CMAKE_SOURCE_DIR}/core -I${CONFLUX_NCCL_INCLUDE} -I${CONFLUX_CUDNN_INCLUDE}
              -Xcompiler=-fPIC,-fvisibility=hidden
              -MD -MF ${object}.d -c ${file} -o ${object}
      DEPENDS ${file} DEPFILE ${object}.d COMMENT "Building CUDA object ${name}.o" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set(plugin ${CMAKE_BINARY_DIR}/lib/libconflux_cuda.so)
  add_custom_command(OUTPUT ${plugin}
    COMMAND ${CONFLUX_NVCC} -shared -cudart=shared ${objects} $<TARGET_OBJECTS:conflux_base> -o ${plugin}
            -L$<TARGET_FILE_DIR:libconflux> -lconflux -lcublasLt -Xlinker=-z,nodelete,-rpath,$ORIGIN,-rpath,${cuda}/lib64
    DEPENDS ${objects} $<TARGET_OBJECTS:conflux_base> libconflux COMMAND_EXPAND_LISTS COMMENT "Linking libconflux_cuda.so" VERBATIM)
  add_custom_target(conflux_cuda ALL DEPENDS ${plugin})
  install(FILES ${plugin} TYPE LIB)
endif()

# ---- the kernels on the CPU ---------------------------------------------------------------------------------

# ThreadSanitizer does not know fibers.
include(CheckLanguage)
check_language(CXX)
if(CMAKE_CXX_COMPILER AND TARGET conflux_static AND NOT CONFLUX_SANITIZE MATCHES thread
   AND CMAKE_C_COMPILER_ID STREQUAL GNU)
  enable_language(CXX)
  set(wrappers "")
  foreach(file IN LISTS cuda_sources)
    cmake_path(GET file STEM name)
    if(name MATCHES "^(nccl|cudnn)_none$")
      continue()
    endif()
    set(wrapper ${CMAKE_BINARY_DIR}/generated/emulated_${name}.cpp)
    file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"${file}\"\n" @ONLY)
    list(APPEND wrappers ${wrapper})
  endforeach()
  function(emulates target)
    target_compile_features(${target} PRIVATE cxx_std_17)
    target_compile_definitions(${target} PRIVATE CF_EMULATED)
    target_include_directories(${target} PRIVATE tests/cuda)
    target_compile_options(${target} PRIVATE -Wno-unused-function)
    if(CONFLUX_SANITIZE) # in full, and with -O2, they take minutes
      target_compile_options(${target} PRIVATE -O1 -g1 -fno-sanitize=undefined)
    endif()
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden)
  endfunction()

  # Rows by themselves: the kernel tests of tests/c, over these kernels.
  set(rows ${wrappers})
  list(FILTER rows EXCLUDE REGEX "emulated_(backend|device|nccl|about).cpp$")
  add_library(conflux_cuda_kernels OBJECT EXCLUDE_FROM_ALL ${rows} tests/cuda/emulated.cpp
    tests/cuda/emulated_runtime.cpp tests/cuda/halves.cpp)
  emulates(conflux_cuda_kernels)
  add_library(conflux_cuda_rows STATIC EXCLUDE_FROM_ALL tests/cuda/emulated_rows.cpp
    $<TARGET_OBJECTS:conflux_cuda_kernels>)
  emulates(conflux_cuda_rows)
  set(emulated_tests batchnorm images kernels kernels_make kernels_reduce layers select update products)
  if(NOT CONFLUX_SANITIZE) # there is no pretended cuDNN then
    list(APPEND emulated_tests conv)
  endif()
  foreach(name IN LISTS emulated_tests)
    c_test(cuda_${name}_test tests/c/${name}_test.c conflux_cuda_rows)
    target_compile_definitions(cuda_${name}_test PRIVATE CF_TEST_CUDA)
    target_include_directories(cuda_${name}_test PRIVATE tests/cuda)
    set_target_properties(cuda_${name}_test PROPERTIES LINKER_LANGUAGE CXX)
  endforeach()

  # The whole plugin on a pretended GPU, and an NCCL and a cuDNN for it: build/emulated, for CONFLUX_PLUGINS and CONFLUX_CUDA_PATH.
  if(NOT CONFLUX_SANITIZE)
    set(others ${wrappers})
    list(FILTER others INCLUDE REGEX "emulated_(backend|device|nccl|about).cpp$")
    add_library(conflux_cuda_emulated MODULE ${others} $<TARGET_OBJECTS:conflux_cuda_kernels>
      $<TARGET_OBJECTS:conflux_base>)
    add_library(fake_nccl SHARED tests/cuda/fake_nccl.cpp)
    add_library(fake_cudnn SHARED tests/cuda/fake_cudnn.cpp tests/cuda/halves.cpp)
    emulates(conflux_cuda_emulated)
    emulates(fake_nccl)
    emulates(fake_cudnn)
    target_link_libraries(conflux_cuda_emulated PRIVATE libconflux Threads::Threads)
    set_target_properties(fake_nccl PROPERTIES OUTPUT_NAME nccl SUFFIX .so.2)
    set_target_properties(fake_cudnn PROPERTIES OUTPUT_NAME cudnn SUFFIX .so.9)
    set_target_properties(conflux_cuda_emulated PROPERTIES OUTPUT_NAME conflux_cuda)
    set_target_properties(fake_nccl fake_cudnn conflux_cuda_emulated PROPERTIES PREFIX lib
      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/emulated)
    set_property(TEST nccl_test PROPERTY ENVIRONMENT "CONFLUX_EMULATED_GPUS=3"
      "CONFLUX_PLUGINS=${CMAKE_BINARY_DIR}/emulated" "CONFLUX_CUDA_PATH=${CMAKE_BINARY_DIR}/emulated")
    set_property(TEST cuda_conv_test PROPERTY ENVIRONMENT "CONFLUX_CUDA_PATH=${CMAKE_BINARY_DIR}/emulated")
  endif()
endif()
