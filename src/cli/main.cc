// The program `paradyse`.
#include "src/cli/interrupt.h"
#include "src/cli/program.h"

namespace {

// Before the libraries begin, which takes most of the time until main: SIGUSR1 may come by then.
void begin(int /*argc*/, char** /*argv*/, char** /*variables*/) {
  paradyse::cli::hold_save_wishes();
}

using Beginning = void (*)(int, char**, char**);
[[gnu::section(".preinit_array"), gnu::used]] const Beginning kBeginning = begin;

}  // namespace

int main(int argc, char** argv) { paradyse::cli::run_program(argc, argv); }
