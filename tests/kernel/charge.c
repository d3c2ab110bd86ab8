/*
 * A container's program: allocates device memory and says what it was answered.
 *
 *   charge REGION BYTES    exits with 0 or the error's number
 *   charge                 does so for each line "REGION BYTES" of its standard input and prints
 *                          the number; what it got stays allocated until the input ends
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static int charge(int driver, const char *what)
{
	return dprintf(driver, "charge %s", what) < 0 ? errno : 0;
}

int main(int argc, char **argv)
{
	int driver = open("/proc/dmemtest", O_WRONLY);
	char line[256];

	if (driver < 0)
		return errno;
	if (argc == 3) {
		snprintf(line, sizeof(line), "%s %s", argv[1], argv[2]);
		return charge(driver, line);
	}
	setvbuf(stdout, NULL, _IONBF, 0);
	while (fgets(line, sizeof(line), stdin))
		printf("%d\n", charge(driver, line));
	return 0;
}
