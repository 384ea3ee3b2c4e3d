// libFuzzer over the readers of tests/run/readers.h: this program's name says which, fuzz.plan_json
// (scripts/fuzz.sh).  What a reader throws to refuse a file is fine; all else ends the program.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "tests/run/readers.h"
#include "tests/support/folder.h"

namespace paradyse::test {
namespace {

std::string program_name(const Reader& reader) { return "fuzz." + corpus_name(reader); }

const Reader* chosen = nullptr;

fs::path place() {
  static const Folder folder;
  static const fs::path file = folder / chosen->name;
  return file;
}

}  // namespace
}  // namespace paradyse::test

extern "C" int LLVMFuzzerInitialize(int* /*count*/, char*** arguments) {
  using namespace paradyse::test;
  const std::string name = fs::path((*arguments)[0]).filename().string();
  for (const Reader& reader : readers()) {
    if (program_name(reader) == name) {
      chosen = &reader;
    }
  }
  if (chosen == nullptr) {
    std::fputs("give this program one of these names (a link):\n", stderr);
    for (const Reader& reader : readers()) {
      std::fprintf(stdout, "%s\n", program_name(reader).c_str());
    }
    std::exit(name == "fuzz.readers" ? 0 : 2);
  }
  fs::create_directories(place().parent_path());
  // The first of a corpus.
  if (const char* const corpus = std::getenv("PARADYSE_FUZZ_CORPUS"); corpus != nullptr) {
    write_bytes(fs::path(corpus) / "sound", chosen->sound);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace paradyse::test;
  std::string text(reinterpret_cast<const char*>(data), size);
  // Sealed as who means harm would: else nothing behind the digest is ever reached.
  write_bytes(place(), chosen->name == "state.json" ? sealed(text) : text);
  try {
    chosen->read(place());
  } catch (const std::invalid_argument&) {
  } catch (const std::runtime_error&) {
  }
  return 0;
}
