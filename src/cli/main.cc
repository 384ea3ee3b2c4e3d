// The program `paradyse`.
#include "src/cli/program.h"

int main(int argc, char** argv) { paradyse::cli::run_program(argc, argv); }
