// Ctrl-C as a wish, not an axe: the first one asks the run to stop after its step, a second one
// kills.
#pragma once

#include <atomic>

namespace paradyse::cli {

// From now on SIGINT and SIGTERM set the returned flag once; after that they do what they always
// did.  A file over the size limit no longer ends the program: writing it fails instead.
const std::atomic<bool>& catch_interrupts();

}  // namespace paradyse::cli
