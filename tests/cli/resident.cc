// Preloaded into the program by tests/cli/resident.py.  What the program is linked with takes 0.3 s
// to load, each time; this waits where main would begin, and forks for each command that it is
// sent: the child goes on as the program that was started with that command.
#include <cstdlib>
#include <vector>

#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using Main = int (*)(int, char**, char**);
using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);

constexpr std::size_t kMostBytes = std::size_t{1} << 20;  // of a command with its environment
constexpr int kStreams = 3;                               // stdin, stdout and stderr

Main program = nullptr;

struct Command {
  std::vector<char> text;  // of all strings that the others point to
  char* folder = nullptr;
  std::vector<char*> arguments;  // null at the end, as main takes them
  std::vector<char*> variables;
  int streams[kStreams] = {};
};

// Sent as strings that each end with \0: a folder, arguments, an empty one, and variables.  False:
// nobody will send another.
bool receive(int socket, Command& command) {
  command.text.resize(kMostBytes);
  iovec bytes = {command.text.data(), command.text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(command.streams))] = {};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t length = recvmsg(socket, &message, 0);
  const cmsghdr* passed = CMSG_FIRSTHDR(&message);
  if (length <= 0 || passed == nullptr || passed->cmsg_len != CMSG_LEN(sizeof(command.streams))) {
    return false;
  }
  __builtin_memcpy(command.streams, CMSG_DATA(passed), sizeof(command.streams));
  std::vector<char*>* list = &command.arguments;
  char* at = command.text.data();
  char* const end = at + length;
  command.folder = at;
  for (at += __builtin_strlen(at) + 1; at < end; at += __builtin_strlen(at) + 1) {
    if (*at == '\0') {
      list->push_back(nullptr);
      list = &command.variables;
    } else {
      list->push_back(at);
    }
  }
  list->push_back(nullptr);
  return true;
}

int run(Command& command) {
  for (int i = 0; i < kStreams; ++i) {
    if (dup2(command.streams[i], i) < 0) {
      return 127;
    }
    close(command.streams[i]);
  }
  if (chdir(command.folder) != 0) {
    return 127;
  }
  environ = command.variables.data();
  return program(static_cast<int>(command.arguments.size()) - 1, command.arguments.data(), environ);
}

// Answers each command by the number of its process, and by how that ended.
int serve(int socket) {
  for (;;) {
    static Command command;  // a child has it to its end
    command = {};
    if (!receive(socket, command)) {
      return 0;
    }
    const pid_t child = fork();
    if (child == 0) {
      close(socket);
      return run(command);
    }
    for (const int stream : command.streams) {
      close(stream);
    }
    int status = -1;
    if (send(socket, &child, sizeof(child), 0) < 0 || waitpid(child, &status, 0) < 0 ||
        send(socket, &status, sizeof(status), 0) < 0) {
      return 1;
    }
  }
}

int main_or_serve(int count, char** arguments, char** variables) {
  const char* socket = std::getenv("PARADYSE_RESIDENT_SOCKET");
  return socket == nullptr ? program(count, arguments, variables) : serve(std::atoi(socket));
}

}  // namespace

// What a program calls first of all, with the main that it has.
extern "C" int __libc_start_main(
    Main main,
    int count,
    char** arguments,
    void (*begin)(),
    void (*end)(),
    void (*loader_end)(),
    void* stack_end) {
  program = main;
  const auto start = reinterpret_cast<Start>(dlsym(RTLD_NEXT, "__libc_start_main"));
  return start(main_or_serve, count, arguments, begin, end, loader_end, stack_end);
}
