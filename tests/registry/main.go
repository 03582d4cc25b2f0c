// A schema registry for tests: srfake of franz-go, an in-memory implementation of the API of Confluent's registry, with
// controls below /test/ that make it fail (control.go). All responses of the schema API are srfake's, except for failures
// that a test has requested. scripts/registry builds the program and documents its options.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/sr/srfake"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("scripts/registry: ")
	port := flag.Int("port", 0, "")
	user := flag.String("user", "", "")
	cert := flag.String("cert", "", "")
	key := flag.String("key", "", "")
	clientCA := flag.String("client-ca", "", "")
	untilEOF := flag.Bool("until-eof", false, "")
	flag.Usage = func() { log.Print("invalid options; see scripts/registry") }
	flag.Parse()
	if flag.NArg() > 0 || (*cert == "") != (*key == "") || (*clientCA != "" && *cert == "") {
		flag.Usage()
		os.Exit(2)
	}

	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(*port)))
	failIf(err)
	server := &http.Server{Handler: handler(*user), ErrorLog: log.Default(), ReadHeaderTimeout: time.Minute}
	scheme := "http"
	if *cert != "" {
		scheme = "https"
		server.TLSConfig = tlsConfig(*cert, *key, *clientCA)
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if *untilEOF {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			stop()
		}()
	}
	go func() {
		<-ctx.Done()
		_ = server.Close() // at once: requests that hang would wait for ever
	}()

	fmt.Printf("ready %s://%s\n", scheme, listener.Addr())
	if scheme == "https" {
		err = server.ServeTLS(listener, "", "")
	} else {
		err = server.Serve(listener)
	}
	if !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}

// The registry and its controls. With a user, the registry requires authentication, and the controls do not.
func handler(user string) http.Handler {
	var options []srfake.Option
	if user != "" {
		options = append(options, srfake.WithAuth("Basic "+base64.StdEncoding.EncodeToString([]byte(user))))
	}
	registry := srfake.NewRegistry(options...)
	control := newControl(registry)
	registry.Intercept(control.intercept)
	mux := http.NewServeMux()
	mux.Handle("/", registry.Handler())
	mux.Handle("/test/", control.handler())
	return mux
}

// Serves TLS with this certificate. With a CA, requires client certificates that the CA has signed.
func tlsConfig(cert, key, clientCA string) *tls.Config {
	pair, err := tls.LoadX509KeyPair(cert, key)
	failIf(err)
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if clientCA != "" {
		pem, err := os.ReadFile(clientCA)
		failIf(err)
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(pem) {
			log.Fatalf("%s has no certificate", clientCA)
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return config
}

func failIf(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
