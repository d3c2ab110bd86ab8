/*
 * A container's program: allocates device memory and says what it was answered.
 *
 *   charge REGION BYTES ...    of each pair in turn, one line for each: 0 or the error's number;
 *                              exits with the last
 *   charge                     of each line "REGION BYTES" of its standard input; what it got stays
 *                              allocated until the input ends
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

static int charge(int driver, const char *region, const char *bytes)
{
	int answer = dprintf(driver, "charge %s %s", region, bytes) < 0 ? errno : 0;

	printf("%d\n", answer);
	fflush(stdout);
	return answer;
}

int main(int argc, char **argv)
{
	int driver = open("/proc/dmemtest", O_WRONLY);
	char region[128], bytes[32];
	int answer = 0;

	if (driver < 0) {
		perror("/proc/dmemtest");
		return errno;
	}
	for (int i = 1; i + 1 < argc; i += 2)
		answer = charge(driver, argv[i], argv[i + 1]);
	while (argc == 1 && scanf("%127s %31s", region, bytes) == 2)
		charge(driver, region, bytes);
	return answer;
}
