// SIGINT (Ctrl-C) and SIGTERM end the program at once, wherever it is: that is what they do by
// themselves, and files are written so that half of one never passes for a whole.  Only where steps
// are trained they are a wish: the first one asks the run to stop after its step and save what it
// has, a second one ends it.
//
// One wish may come twice: who stops a container or a job signals the launcher, which hands it on,
// and the ranks.  So what follows within two seconds, or while the run saves, is no second one.
#pragma once

#include <atomic>

namespace paradyse::cli {

// Set by the first signal that was caught.
const std::atomic<bool>& interrupted();
// Its number: SIGINT or SIGTERM; 0 where none came.
const std::atomic<int>& interrupted_by();

// SIGUSR1 asks for a checkpoint after the step under way; who writes it takes the wish down.
std::atomic<bool>& save_asked();
// SIGUSR1 waits until it is caught, in commands that do not catch it for good: else it would end
// the program, and who asks for a checkpoint does not know how far the program is.  main.cc begins
// with it.
void hold_save_wishes();
// From now on, and the one that waits.
void catch_save_wishes();
// SIGUSR1 does this.
void on_save_wish(void (*handler)(int));

// From now on the first SIGINT or SIGTERM sets interrupted(), and a second one ends the program
// with exit code 1: no checkpoint was written by it.  SIGHUP, where it is not ignored (nohup), is a
// SIGTERM.
void catch_interrupts();
// The run begins to save, or is through with it; calls may be nested.
void count_saving(bool begins);

// Who reads stdout or stderr may leave (| head): what is told is lost then, and the program goes
// on.
void outlive_readers();
// Whether outlive_readers() was called and the reader of stdout has left.
bool reader_has_left();

}  // namespace paradyse::cli
