// The command-line program. Exit codes: 0 done, 1 an error, 2 a wrong command
// line, 130 interrupted.

#include <cstdio>
#include <exception>
#include <new>

#include <CLI/CLI.hpp>

#include <faiss_flashgmm/plain_message.h>
#include <faiss_flashgmm/tools/Console.h>
#include <faiss_flashgmm/tools/commands.h>

namespace {

enum ExitCode { kDone = 0, kError = 1, kUsage = 2, kInterrupted = 130 };

} // namespace

int main(int argc, char** argv) {
    using namespace faiss_flashgmm;
    CLI::App program(
            "Gaussian mixtures as coarse quantizers of FAISS indexes.\n\n"
            "From vectors to answers, and how good they are:\n"
            "  flashgmm build base.fvecs -o base.index\n"
            "  flashgmm search base.index queries.fvecs -o found.ivecs\n"
            "  flashgmm groundtruth base.fvecs queries.fvecs -o truth.ivecs\n"
            "  flashgmm eval base.index queries.fvecs truth.ivecs\n\n"
            "Vector files: fvecs bvecs ivecs fbin f16bin u8bin i8bin ibin npy, "
            "and FILE.hdf5:DATASET.\n",
            "flashgmm");
    program.footer(
            "flashgmm COMMAND --help says what a command takes.\n"
            "Exit codes: 0 done, 1 an error, 2 a wrong command line, 130 "
            "interrupted.");
    program.get_formatter()->label("SUBCOMMAND", "COMMAND");
    program.set_version_flag("--version", FLASHGMM_VERSION);
    program.require_subcommand(1);
    add_build(program);
    add_search(program);
    add_eval(program);
    add_fit(program);
    add_assign(program);
    add_groundtruth(program);
    add_bench(program);
    add_convert(program);
    add_info(program);
    try {
        program.parse(argc, argv);
        return kDone;
    } catch (const CLI::ParseError& error) {
        return program.exit(error) == 0 ? kDone : kUsage;
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "flashgmm: out of memory\n");
        return kError;
    } catch (const std::exception& error) {
        if (was_interrupted()) {
            std::fprintf(stderr, "flashgmm: interrupted\n");
            return kInterrupted;
        }
        std::fprintf(
                stderr, "flashgmm: %s\n", plain_message(error.what()).c_str());
        return kError;
    }
}
