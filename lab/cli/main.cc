// The program `paradyse-lab`: paradyse with the planners and the cost models of publications, to
// compare with, and measurements that only documents ask for.
#include "lab/cli/commands.h"
#include "lab/grouping/rivals.h"
#include "src/cli/program.h"

int main(int argc, char** argv) {
  using namespace paradyse::cli;
  paradyse::add_rivals();  // plan batch --planner has them, too
  run_program(argc, argv, {{"Publications", {add_flexsp, add_replay, add_memory}}}, "paradyse-lab");
}
