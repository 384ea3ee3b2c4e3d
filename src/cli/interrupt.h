// SIGINT (Ctrl-C) and SIGTERM end the program at once, wherever it is: that is what they do by
// themselves, and files are written so that half of one never passes for a whole.  Only where steps
// are trained they are a wish: the first one asks the run to stop after its step and save what it
// has, a second one ends it.
#pragma once

#include <atomic>

namespace paradyse::cli {

// Set by the first signal that was caught.
const std::atomic<bool>& interrupted();
// The exit code that says so, as shells do: 130 for SIGINT, 143 for SIGTERM; 0 where none came.
int interrupted_code();

// SIGUSR1 asks for a checkpoint after the step under way; who writes it takes the wish down.
std::atomic<bool>& save_asked();
// From now on, also before there is something to save: the signal would end the program.
void catch_save_wishes();

// From now on the first SIGINT or SIGTERM sets interrupted(); after it both do what they always
// did.
void catch_interrupts();

}  // namespace paradyse::cli
