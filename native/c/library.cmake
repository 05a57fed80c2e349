# libonegru, the functions of onegru.h, as a shared and a static library. Programs find it with find_package(onegru) or
# pkg-config. In a build of the Python module or of the tests, it is built only if you name its target.

set(ONEGRU_C_SOURCES native/c/file.cc native/c/onegru.cc)
if(ONEGRU_PYTHON OR ONEGRU_NATIVE_TESTS)
  set(ONEGRU_C_ON_DEMAND EXCLUDE_FROM_ALL)
endif()

# ---------------------------------------------------------------- in a browser
if(ONEGRU_SYSTEM STREQUAL "wasi")
  if(ONEGRU_SMALL)
    target_compile_definitions(onegru_kernels PUBLIC ONEGRU_WEB)
  endif()
  add_executable(onegru_web EXCLUDE_FROM_ALL ${ONEGRU_C_SOURCES})
  file(STRINGS native/c/onegru.h ONEGRU_FUNCTIONS REGEX "^ONEGRU_API")
  list(TRANSFORM ONEGRU_FUNCTIONS REPLACE ".*(onegru_[a-z_]+)\\(.*" "-Wl,--export=\\1")
  target_link_libraries(onegru_web PRIVATE onegru_kernels)
  target_compile_options(onegru_web PRIVATE ${ONEGRU_CXX_OPTIONS})
  target_link_options(onegru_web PRIVATE -mexec-model=reactor -Wl,--strip-all ${ONEGRU_FUNCTIONS} -Wl,--export=malloc
                      -Wl,--export=free -Wl,--export=__stack_pointer -Wl,-z,stack-size=262144)
  return()
endif()

# ---------------------------------------------------------------- shared and static
set(ONEGRU_CXX_LIBRARY stdc++)
if(APPLE)
  set(ONEGRU_CXX_LIBRARY c++)
endif()
include(GNUInstallDirs)
add_library(onegru SHARED ${ONEGRU_C_ON_DEMAND} ${ONEGRU_C_SOURCES})
# The package and onegru.h have the same version. Its first number is part of the shared library's name.
string(REGEX MATCH "^[0-9]+" ONEGRU_MAJOR "${ONEGRU_RELEASE}")
set_target_properties(onegru PROPERTIES VERSION ${ONEGRU_RELEASE} SOVERSION ${ONEGRU_MAJOR})
target_compile_definitions(onegru PRIVATE ONEGRU_BUILDING INTERFACE ONEGRU_SHARED)
target_link_libraries(onegru PRIVATE onegru_kernels)
target_link_options(onegru PRIVATE ${ONEGRU_LINK_OPTIONS})
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")  # hides inline functions of the C++ library, too
  file(CONFIGURE OUTPUT onegru.map CONTENT "{ global: onegru_*; local: *; };\n")
  target_link_options(onegru PRIVATE "-Wl,--version-script=${CMAKE_CURRENT_BINARY_DIR}/onegru.map")
endif()

# The static library contains the kernels, and Highway if it was downloaded. Its functions are hidden, so that a plug-in
# does not export them, and a host with another version does not replace them.
option(ONEGRU_STATIC_EXPORTS "Let shared libraries export the functions of libonegru.a that they contain" OFF)
set(ONEGRU_PRIVATE_LIBS "")
if(highway_SOURCE_DIR)
  set(ONEGRU_HIGHWAY_INSIDE $<TARGET_OBJECTS:hwy>)
elseif(ONEGRU_NEEDS_HIGHWAY)
  set(ONEGRU_PRIVATE_LIBS "-lhwy")
endif()
add_library(onegru_static STATIC ${ONEGRU_C_ON_DEMAND} ${ONEGRU_C_SOURCES} $<TARGET_OBJECTS:onegru_kernels>
            ${ONEGRU_HIGHWAY_INSIDE})
set_target_properties(onegru_static PROPERTIES OUTPUT_NAME $<IF:$<PLATFORM_ID:Windows>,onegru_static,onegru>)
target_include_directories(onegru_static PRIVATE $<TARGET_PROPERTY:onegru_kernels,INTERFACE_INCLUDE_DIRECTORIES>
                           $<TARGET_PROPERTY:hwy::hwy,INTERFACE_INCLUDE_DIRECTORIES>)
target_compile_definitions(onegru_static PRIVATE $<TARGET_PROPERTY:onegru_kernels,INTERFACE_COMPILE_DEFINITIONS>)
if(NOT ONEGRU_STATIC_EXPORTS)
  target_compile_definitions(onegru_static PRIVATE ONEGRU_HIDDEN)
endif()
target_link_libraries(onegru_static INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
if(NOT WIN32)  # libraries that C programs do not link by default
  target_link_libraries(onegru_static INTERFACE $<$<LINK_LANGUAGE:C>:${ONEGRU_CXX_LIBRARY}> $<$<LINK_LANGUAGE:C>:m>)
endif()
if(ONEGRU_PRIVATE_LIBS)
  target_link_libraries(onegru_static INTERFACE hwy::hwy)
endif()
foreach(library onegru onegru_static)
  target_compile_options(${library} PRIVATE ${ONEGRU_CXX_OPTIONS})
  target_include_directories(${library} INTERFACE "$<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/native/c>"
                             "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
endforeach()

if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  add_executable(onegru_real_time EXCLUDE_FROM_ALL native/tests/real_time.cc)
  target_include_directories(onegru_real_time PRIVATE native/c)
  target_link_libraries(onegru_real_time PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
  set_target_properties(onegru_real_time PROPERTIES ENABLE_EXPORTS ON)  # its malloc counts calls
  add_dependencies(onegru_real_time onegru)
endif()

# ---------------------------------------------------------------- installation
include(CMakePackageConfigHelpers)
install(TARGETS onegru onegru_static EXPORT onegru COMPONENT c)
install(FILES native/c/onegru.h native/c/onegru.hpp DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT c)
set(ONEGRU_PACKAGE "${CMAKE_INSTALL_LIBDIR}/cmake/onegru")
install(EXPORT onegru NAMESPACE onegru:: FILE onegru-targets.cmake DESTINATION "${ONEGRU_PACKAGE}" COMPONENT c)
set(ONEGRU_FIND_HIGHWAY "")
if(ONEGRU_PRIVATE_LIBS)
  set(ONEGRU_FIND_HIGHWAY "find_dependency(hwy)")
endif()
file(CONFIGURE OUTPUT onegru-config.cmake @ONLY CONTENT "\
include(CMakeFindDependencyMacro)
find_dependency(Threads)
@ONEGRU_FIND_HIGHWAY@
include(\"\${CMAKE_CURRENT_LIST_DIR}/onegru-targets.cmake\")
")
write_basic_package_version_file(onegru-config-version.cmake VERSION ${ONEGRU_RELEASE} COMPATIBILITY SameMajorVersion)
# The prefix is relative to the file, so that the folder can be moved.
file(RELATIVE_PATH ONEGRU_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
file(CONFIGURE OUTPUT onegru.pc @ONLY CONTENT "\
prefix=\${pcfiledir}/@ONEGRU_PREFIX@
libdir=\${prefix}/@CMAKE_INSTALL_LIBDIR@
Name: onegru
Description: GRU layers and streams
Version: @ONEGRU_RELEASE@
Cflags: -I\${prefix}/@CMAKE_INSTALL_INCLUDEDIR@
Libs: -L\${libdir} -lonegru
Libs.private: @ONEGRU_PRIVATE_LIBS@ -l@ONEGRU_CXX_LIBRARY@ -lm -ldl -pthread
")
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/onegru-config.cmake" "${CMAKE_CURRENT_BINARY_DIR}/onegru-config-version.cmake"
        DESTINATION "${ONEGRU_PACKAGE}" COMPONENT c)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/onegru.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT c)
