// Which program this is.  Compiled by itself, so that a new commit compiles one small file.
#pragma once

namespace paradyse::cli {

const char* version();  // "0.2.0"
const char* commit();   // twelve digits; "" where it was built from no git checkout

}  // namespace paradyse::cli
